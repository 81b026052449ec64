/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/gpu_client.h"
#include "common/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "gpu/driver.h"
#include "restore/gpu_protocol.h"

#define STOP_POLL_MS 100

struct gpu_client {
	int sock;
};

/* -- packets ------------------------------------------------------------------------------------------ */

int gpu_packet_send(int sock, const void *msg, size_t len, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)msg, .iov_len = len };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	if (fd >= 0) {
		m.msg_control = &control;
		m.msg_controllen = sizeof(control.room);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	}
	do {
		n = sendmsg(sock, &m, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

int gpu_packet_receive(int sock, void *buf, int *ret_fd)
{
	/* room for more descriptors than are allowed, so that none is lost unseen */
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(4 * sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = buf, .iov_len = GPU_MSG_MAX };
	struct msghdr m = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control.room),
	};
	int first = -1, n_fds = 0;
	ssize_t n;

	do {
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
			if (n_fds++)
				close(fd);
			else
				first = fd;
		}
	}
	if ((m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || n_fds > 1) {
		if (first >= 0)
			close(first);
		return -EBADMSG;
	}
	*ret_fd = first;
	return (int)n;
}

/* -- commands ----------------------------------------------------------------------------------------- */

int gpu_client_open(const char *socket_path, struct gpu_client **ret)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct gpu_client *c;
	int r;

	if (strlen(socket_path) >= sizeof(addr.sun_path))
		return gpu_fail(-ENAMETOOLONG, "cannot connect to '%s': the name is too long", socket_path);
	memcpy(addr.sun_path, socket_path, strlen(socket_path));
	c = calloc(1, sizeof(*c));
	if (!c)
		return gpu_fail(-ENOMEM, "out of memory");
	c->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (c->sock < 0 || connect(c->sock, (struct sockaddr *)&addr, sizeof(addr))) {
		r = -errno;
		gpu_client_close(c);
		return gpu_fail(r, "cannot connect to the GPU helper at '%s': %s", socket_path, strerror(-r));
	}
	*ret = c;
	return 0;
}

void gpu_client_close(struct gpu_client *c)
{
	if (!c)
		return;
	if (c->sock >= 0)
		close(c->sock);
	free(c);
}

/* the helper's answer */
static int receive(struct gpu_client *c, struct gpu_client_result *ret)
{
	struct gpu_msg_result msg;
	int fd = -1, n;

	n = gpu_packet_receive(c->sock, &msg, &fd);
	/* it closed without reading all that was sent: that is told first, but its answer is there still */
	if (n == -ECONNRESET)
		n = gpu_packet_receive(c->sock, &msg, &fd);
	if (fd >= 0)
		close(fd);
	if (n == 0 || n == -ECONNRESET)
		return gpu_fail(-EPIPE, "the GPU helper is gone");
	if (n < 0)
		return gpu_fail(n, "cannot hear from the GPU helper: %s", strerror(-n));
	if (n != sizeof(msg) || msg.type != GPU_MSG_RESULT || msg.error > 0)
		return gpu_fail(-EBADMSG, "the GPU helper does not speak as it should");
	msg.reason[sizeof(msg.reason) - 1] = '\0';
	if (msg.error)
		return gpu_fail(msg.error, "the GPU helper failed: %s", msg.reason);
	ret->bytes = msg.bytes;
	ret->zero_bytes = msg.zero_bytes;
	ret->wall_ns = msg.wall_ns;
	return 0;
}

static int say(struct gpu_client *c, const void *msg, size_t len, int fd)
{
	int r = gpu_packet_send(c->sock, msg, len, fd);
	struct gpu_client_result ignored;

	/* it may have said why before it closed */
	if (r == -EPIPE || r == -ECONNRESET)
		return receive(c, &ignored) ? -EPIPE : gpu_fail(-EPIPE, "the GPU helper is gone");
	return r ? gpu_fail(r, "cannot speak to the GPU helper: %s", strerror(-r)) : 0;
}

int gpu_client_begin(struct gpu_client *c, const char *path, bool other_chip)
{
	const struct gpu_msg_begin msg = { .type = GPU_MSG_BEGIN, .protocol = GPU_PROTOCOL, .other_chip = other_chip };
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return gpu_fail(-errno, "cannot open '%s': %s", path, strerror(errno));
	return say(c, &msg, sizeof(msg), fd);
}

int gpu_client_buffer(struct gpu_client *c, const char *id, const uint8_t uuid[16], uint64_t size, uint64_t mapped_size,
		      int fd)
{
	struct gpu_msg_buffer msg = { .type = GPU_MSG_BUFFER, .size = size, .mapped_size = mapped_size };

	if (strlen(id) >= sizeof(msg.id))
		return gpu_fail(-EINVAL, "'%s' is no id of a buffer", id);
	memcpy(msg.uuid, uuid, sizeof(msg.uuid));
	memcpy(msg.id, id, strlen(id));
	return say(c, &msg, sizeof(msg), fd);
}

int gpu_client_go(struct gpu_client *c, unsigned timeout_ms)
{
	const struct gpu_msg_go msg = { .type = GPU_MSG_GO, .timeout_ms = timeout_ms };

	return say(c, &msg, sizeof(msg), -1);
}

int gpu_client_wait(struct gpu_client *c, const volatile int *stop, struct gpu_client_result *ret)
{
	const struct gpu_msg_go cancel = { .type = GPU_MSG_CANCEL };
	struct pollfd p = { .fd = c->sock, .events = POLLIN };
	bool cancelled = false;

	for (;;) {
		int n = poll(&p, 1, stop && !cancelled ? STOP_POLL_MS : -1);

		if (n < 0 && errno != EINTR)
			return gpu_fail(-errno, "cannot wait for the GPU helper: %s", strerror(errno));
		if (n > 0)
			return receive(c, ret);
		if (stop_asked(stop) && !cancelled) {
			int r = say(c, &cancel, sizeof(cancel), -1);

			if (r)
				return r;
			cancelled = true;
		}
	}
}
