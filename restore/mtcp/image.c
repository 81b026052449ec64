/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the image: every field is checked before it is used, and of a file all of it before anything is lost. */
#include <asm/stat.h>
#include <linux/mman.h>
#include <linux/stat.h>

#include "restore/mtcp/mtcp.h"

#define O_CLOEXEC_   02000000
#define SEEK_CUR_    1
#define FUSE_MAGIC   0x65735546
#define AREAS_OFF    8192u
#define HEADER_OFF   4096u
#define MAX_PAYLOADS (1ull << 47)

static uint64_t get64(const uint8_t *p, size_t off)
{
	uint64_t v;

	memcpy(&v, p + off, sizeof(v));
	return v;
}

static uint32_t get32(const uint8_t *p, size_t off)
{
	uint32_t v;

	memcpy(&v, p + off, sizeof(v));
	return v;
}

void image_read_stream(struct restart *r, void *buf, uint64_t len)
{
	char *p = buf;

	while (len) {
		long n = sys3(__NR_read, r->fd, p, len < 1024 * MIB ? len : 1024 * MIB);

		if (n == -4) /* EINTR */
			continue;
		if (n == 0)
			fail(r, EXIT_DAMAGED, "the image is cut short at offset #", NULL, r->stream_off);
		if (n < 0)
			fail(r, EXIT_FAILED, "cannot read the image: error #", NULL, (uint64_t)-n);
		p += n;
		len -= (uint64_t)n;
		r->stream_off += (uint64_t)n;
	}
}

static void read_page(struct restart *r, uint64_t off)
{
	uint64_t have = 0;

	if (r->is_pipe) {
		image_read_stream(r, r->page, PAGE);
		return;
	}
	while (have < PAGE) {
		long n = sys4(__NR_pread64, r->fd, r->page + have, PAGE - have, off + have);

		if (n == -4)
			continue;
		if (n == 0)
			fail(r, EXIT_DAMAGED, "the image is cut short at offset #: there is no end mark", NULL,
			     off + have);
		if (n < 0)
			fail(r, EXIT_FAILED, "cannot read the image: error #", NULL, (uint64_t)-n);
		have += (uint64_t)n;
	}
}

static struct span get_span(const uint8_t *p, size_t off)
{
	return (struct span){ get64(p, off), get64(p, off + 8) };
}

static bool good_span(struct span s)
{
	return s.start <= s.end && s.end <= ADDRESS_END && s.start % PAGE == 0 && s.end % PAGE == 0;
}

void image_read_head(struct restart *r)
{
	struct image_head *h = &r->head;
	struct stat st = { 0 };

	if (sys3(__NR_fstat, r->fd, &st, 0) < 0)
		fail(r, EXIT_USAGE, "--fd #: not an open file", NULL, (uint64_t)r->fd);
	r->is_pipe = (st.st_mode & S_IFMT) == S_IFIFO || (st.st_mode & S_IFMT) == S_IFSOCK;
	r->file_size = (uint64_t)st.st_size;
	r->stream_off = HEADER_OFF;
	read_page(r, HEADER_OFF);
	if (memcmp(r->page, "DMTCP_CHECKPOINT_IMAGE_v4.0\n", 28) != 0)
		fail(r, EXIT_DAMAGED, "this is not a DMTCP v4.0 image", NULL, 0);
	if (get32(r->page, 132) != 1)
		fail(r, EXIT_FAILED, "cannot restart here: the image is of another architecture", NULL, 0);
	h->buffer = get_span(r->page, 168);
	h->vdso = get_span(r->page, 184);
	h->vvar = get_span(r->page, 200);
	h->vvar_vclock = get_span(r->page, 216);
	h->brk = get64(r->page, 232);
	h->stack_end = get64(r->page, 240);
	h->post_restart = get64(r->page, 248);
	if (!good_span(h->buffer) || !good_span(h->vdso) || !good_span(h->vvar) || !good_span(h->vvar_vclock) ||
	    h->vdso.end - h->vdso.start > MIB || h->vvar.end - h->vvar.start > MIB ||
	    h->vvar_vclock.end - h->vvar_vclock.start > MIB || h->brk > ADDRESS_END)
		fail(r, EXIT_DAMAGED, "the image's header has impossible addresses", NULL, 0);
	if (h->buffer.start != r->buffer || h->buffer.end - h->buffer.start != r->buffer_len)
		fail(r, EXIT_DAMAGED, "the restore buffer is not the one in the image's header, at @", NULL,
		     h->buffer.start);
}

/* names matter where a file is to be mapped, and for stack and heap */
static uint32_t keep_name(struct restart *r, const char *name)
{
	size_t len = 0;
	char *to;

	while (len < AREA_NAME - 1 && name[len])
		len++;
	if (!len)
		return 0;
	if (!r->names_len || r->is_pipe)
		r->names_len = 1;
	if (r->names_len + len + 1 > sizeof(r->names))
		fail(r, EXIT_FAILED, "cannot restart: the names of the areas are too long", NULL, 0);
	to = r->names + r->names_len;
	memcpy(to, name, len);
	to[len] = '\0';
	r->names_len += (uint32_t)len + 1;
	return (uint32_t)(to - r->names);
}

static bool overlaps(uint64_t start, uint64_t len, struct span s)
{
	return start < s.end && s.start < start + len;
}

static const char *area_error(const struct restart *r, const struct area *a, uint64_t end, uint64_t properties,
			      const struct area *parent)
{
	if (properties > 7 || (properties & PARENT && properties != PARENT))
		return "the area at offset # has unknown properties";
	if (!a->size || a->addr % PAGE || a->size % PAGE || a->size > ADDRESS_END || a->addr > ADDRESS_END - a->size ||
	    a->addr + a->size != end)
		return "the area at offset # has impossible addresses";
	if (overlaps(a->addr, a->size, r->head.buffer) || overlaps(a->addr, a->size, r->head.vdso) ||
	    overlaps(a->addr, a->size, r->head.vvar) || overlaps(a->addr, a->size, r->head.vvar_vclock))
		return "the area at offset # lies in the restore buffer or the vdso";
	if (properties & CHILD &&
	    (!parent->size || a->addr < parent->addr || a->addr + a->size > parent->addr + parent->size))
		return "the area at offset # is part of an area that it is not inside of";
	if (a->payload_len > a->size)
		return "the area at offset # has more bytes than addresses";
	return NULL;
}

/* the header in r->page, at @off. false: it is the end mark */
static bool decode_area(struct restart *r, uint64_t off, const struct area *parent, struct area *ret)
{
	const uint8_t *p = r->page;
	uint64_t properties = get64(p, 80), file_size = get64(p, 72);
	const char *what;
	struct area a = { .addr = get64(p, 0),
			  .size = get64(p, 16),
			  .pgoff = get64(p, 24),
			  .prot = get32(p, 32) & 7,
			  .flags = get32(p, 40) };

	if (a.addr == 0 && a.size == UINT64_MAX)
		return false;
	a.payload_off = off + PAGE;
	if (!(properties & (ZERO | PARENT)))
		a.payload_len = p[88] == '/' && file_size && file_size <= INT64_MAX ? file_size : a.size;
	what = area_error(r, &a, get64(p, 8), properties, parent);
	if (what)
		fail(r, EXIT_DAMAGED, what, NULL, off);
	a.properties = (uint8_t)properties;
	a.name = keep_name(r, (const char *)p + 88);
	if (a.name && text_is(r->names + a.name, "[heap]") && !(properties & CHILD))
		r->heap_start = a.addr;
	r->bytes_total += a.payload_len;
	*ret = a;
	return true;
}

static void remember_parent(struct area *parent, const struct area *a)
{
	if (a->properties & PARENT)
		*parent = *a;
	else if (!(a->properties & CHILD))
		parent->size = 0;
}

void image_read_areas(struct restart *r)
{
	struct area parent = { 0 };
	bool entered = false;

	for (uint64_t off = AREAS_OFF;;) {
		struct area *a = &r->areas[r->n_areas];

		if (r->n_areas == MAX_AREAS)
			fail(r, EXIT_FAILED, "cannot restart: the image has more than # areas", NULL, MAX_AREAS);
		read_page(r, off);
		if (!decode_area(r, off, &parent, a))
			break;
		if (a->payload_len > r->file_size || a->payload_off > r->file_size - a->payload_len)
			fail(r, EXIT_DAMAGED, "the image is cut short inside the area at offset #", NULL, off);
		if (a->addr <= r->head.post_restart && r->head.post_restart - a->addr < a->size)
			entered = true;
		remember_parent(&parent, a);
		off = a->payload_off + a->payload_len;
		r->n_areas++;
	}
	if (!entered)
		fail(r, EXIT_DAMAGED, "the image has no memory at @, where it is to go on", NULL, r->head.post_restart);
}

bool image_next_area(struct restart *r, struct area *ret)
{
	uint64_t off = r->stream_off;
	struct area *parent = &r->areas[0];

	read_page(r, off);
	if (!decode_area(r, off, parent, ret))
		return false;
	remember_parent(parent, ret);
	r->n_areas++;
	return true;
}

/* -- the view ---------------------------------------------------------------------------------- */

static size_t append(char *to, size_t room, size_t len, const char *s, size_t n)
{
	if (n >= room - len)
		n = room - len - 1;
	memcpy(to + len, s, n);
	to[len + n] = '\0';
	return len + n;
}

static int open_on_mount(const char *path)
{
	struct {
		long type, rest[32];
	} fs = { 0 };
	long fd = sys3(__NR_open, path, O_CLOEXEC_, 0);

	if (fd < 0)
		return -1;
	if (sys3(__NR_fstatfs, fd, &fs, 0) < 0 || fs.type != FUSE_MAGIC) {
		sys3(__NR_close, fd, 0, 0);
		return -1;
	}
	return (int)fd;
}

/* the id in info.json of the image whose root is the first @n bytes of @path */
static bool read_id(struct restart *r, const char *path, size_t n, char ret_id[33])
{
	size_t room = sizeof(r->text), len = append(r->text, room, 0, path, n);
	int fd;
	long got;

	append(r->text, room, len, "/.thaw/info.json", 16);
	fd = open_on_mount(r->text);
	if (fd < 0)
		return false;
	got = sys4(__NR_pread64, fd, r->text, room - 1, 0);
	sys3(__NR_close, fd, 0, 0);
	r->text[got > 0 ? got : 0] = '\0';
	for (const char *s = r->text; *s; s++) {
		const char *v = text_after(s, "\"id\": \"");

		if (v && text_len(v) > 32 && v[32] == '"') {
			memcpy(ret_id, v, 32);
			ret_id[32] = '\0';
			return true;
		}
	}
	return false;
}

/* by the name that stays: PATH/.thawfs/by-id/ID/.thaw/mem/MEMBER, where PATH is above the image's root */
static int open_by_id(struct restart *r, const char *path, size_t n, const char *id)
{
	size_t room = sizeof(r->text);

	for (size_t k = n + 1; k-- > 0;) {
		size_t len;
		int fd;

		if (k != n && path[k] != '/')
			continue;
		len = append(r->text, room, 0, path, k);
		len = append(r->text, room, len, "/.thawfs/by-id/", 15);
		len = append(r->text, room, len, id, 32);
		len = append(r->text, room, len, "/.thaw/mem", 10);
		append(r->text, room, len, path + n, text_len(path + n));
		fd = open_on_mount(r->text);
		if (fd >= 0)
			return fd;
	}
	return -1;
}

void image_find_view(struct restart *r)
{
	char link[] = "/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0", path[4096], id[33], digits[12];
	size_t at = 14, n = 0;
	long len;

	for (unsigned v = (unsigned)r->fd; v || !n; v /= 10)
		digits[n++] = (char)('0' + v % 10);
	while (n)
		link[at++] = digits[--n];
	len = sys3(__NR_readlink, link, path, sizeof(path) - 1);
	if (len <= 0)
		return;
	path[len] = '\0';
	/* the image's root is one of the directories above the file */
	for (size_t k = (size_t)len; k-- > 0 && r->view_fd < 0;)
		if (path[k] == '/' && read_id(r, path, k, id))
			r->view_fd = open_by_id(r, path, k, id);
}
