/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that saves itself: memory, registers and threads go into a file in the layout of DMTCP's v4.0 images, and
 * restart with DMTCP's restarter or thawfs's. It shows what restart needs from an image, and lets it be tested where no
 * checkpointer is installed. x86-64, glibc, dynamically linked.
 *
 * Saved: all mappings, brk, registers, TLS, signal mask, handlers and alternate stacks, robust lists, all threads.
 * Not saved: descriptors other than those that the restarted process is given, timers, process and thread ids (they
 * are new after a restart, so mutexes that know their owner must not be held meanwhile).
 */
#ifndef THAW_EXAMPLES_SELFCKPT_H
#define THAW_EXAMPLES_SELFCKPT_H

/*
 * selfckpt_init - reserve the memory that a restarter works in; early in main(), before there are other threads
 * Return: 0, -errno
 */
int selfckpt_init(void);

/*
 * selfckpt_save - write this process to @path; other threads stand still meanwhile
 * The file appears under its name when it is complete. One thread at a time.
 * Return: 0 saved; 1 this is the restarted process; -errno
 */
int selfckpt_save(const char *path);

#endif
