/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The supervisor: the process that owns a mount. It attaches it, keeps /dev/fuse, the images' descriptors and
 * the slots, and starts the workers that do the work: one serves, one stands by. When the serving one dies the other
 * takes over at once and the kernel sends again what was under way, so readers only wait a little.
 *
 * It reads no image and waits for no storage, so nothing wedged keeps it from that.
 */
#ifndef THAW_FS_SUPERVISOR_H
#define THAW_FS_SUPERVISOR_H

#include "fs/config.h"
#include "fs/control.h"

/*
 * supervisor_run - mount and serve until unmounted
 * @image, @image_fd:  the single image (store_identify()); ignored and -1 for a store. Takes the descriptor
 * @answers:   called once when the mount answers, or (err != 0) cannot; what is logged before it goes to standard error
 * Return: 0 when it was unmounted, -errno. Messages are logged.
 */
int supervisor_run(const struct fs_config *cfg, const struct control_msg *image, int image_fd,
		   void (*answers)(void *ctx, int err), void *ctx);

#endif
