/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/control.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

union fd_buf {
	char bytes[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

int control_send(int sock, const struct control_msg *msg, int fd)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)msg, .iov_len = sizeof(*msg) };
	union fd_buf buf = { 0 };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	if (fd >= 0) {
		hdr.msg_control = buf.bytes;
		hdr.msg_controllen = sizeof(buf.bytes);
		struct cmsghdr *c = CMSG_FIRSTHDR(&hdr);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	do
		n = sendmsg(sock, &hdr, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

int control_send_type(int sock, enum control_type type, int fd)
{
	struct control_msg msg = { .type = type };

	return control_send(sock, &msg, fd);
}

int control_recv(int sock, struct control_msg *ret, int *ret_fd)
{
	struct control_msg msg;
	struct iovec iov = { .iov_base = &msg, .iov_len = sizeof(msg) };
	union fd_buf buf;
	struct msghdr hdr = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = buf.bytes, .msg_controllen = sizeof(buf.bytes)
	};
	int fd = -1;
	ssize_t n;

	do
		n = recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&hdr); c; c = CMSG_NXTHDR(&hdr, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && fd < 0)
			memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	if (n == 0)
		return 0;
	/* no descriptor was free for the one that came */
	if (hdr.msg_flags & MSG_CTRUNC && fd < 0)
		return -EMFILE;
	if (n != sizeof(msg) || hdr.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		if (fd >= 0)
			close(fd);
		return -EPROTO;
	}
	msg.name[CONTROL_NAME_MAX - 1] = msg.file[CONTROL_NAME_MAX - 1] = '\0';
	*ret = msg;
	*ret_fd = fd;
	return 1;
}
