/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a target and the helper say to each other, over a SOCK_SEQPACKET socket of one machine: each message is one
 * packet of exactly its size, in the byte order of the machine.
 *
 *     target: BEGIN + descriptor of the image (or directory) · BUFFER + descriptor of an exported allocation, for each
 * · GO · nothing more, or CANCEL helper: one RESULT, at any time after BEGIN; then the target may BEGIN again
 *
 * A connection that ends is a cancel.
 */
#ifndef THAW_RESTORE_GPU_PROTOCOL_H
#define THAW_RESTORE_GPU_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#define GPU_PROTOCOL 1u

enum gpu_message { GPU_MSG_BEGIN = 1, GPU_MSG_BUFFER, GPU_MSG_GO, GPU_MSG_CANCEL, GPU_MSG_RESULT };

struct gpu_msg_begin {
	uint32_t type, protocol;
	uint32_t other_chip; /* 0 or 1 */
	uint32_t reserved;
};

struct gpu_msg_buffer {
	uint32_t type, reserved;
	uint8_t uuid[16]; /* of the GPU that the memory is on */
	uint64_t size, mapped_size;
	char id[208]; /* in the image; ends with zeros */
};

struct gpu_msg_go {
	uint32_t type, timeout_ms; /* 0: none. CANCEL has this form too */
};

struct gpu_msg_result {
	uint32_t type;
	int32_t error; /* 0, or a negative errno */
	uint64_t bytes, zero_bytes, wall_ns;
	char reason[320]; /* ends with a zero */
};

#define GPU_MSG_MAX sizeof(struct gpu_msg_result)

_Static_assert(sizeof(struct gpu_msg_begin) == 16, "begin");
_Static_assert(sizeof(struct gpu_msg_buffer) == 248, "buffer");
_Static_assert(sizeof(struct gpu_msg_go) == 8, "go");
_Static_assert(sizeof(struct gpu_msg_result) == 352, "result");

/* a packet with a descriptor or (-1) without. Return: 0 or -errno; not logged */
int gpu_packet_send(int sock, const void *msg, size_t len, int fd);
/*
 * the next packet into @buf of GPU_MSG_MAX bytes. @ret_fd: -1, or the caller's to close.
 * Return: its length, 0 at the end, -EBADMSG for what cannot be a message, -errno; not logged
 */
int gpu_packet_receive(int sock, void *buf, int *ret_fd);

#endif
