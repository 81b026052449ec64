/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of image.h on a good image: look-ups by name, offset and address, bytes, threads, and a file cut under it.
 */
#include "imgfmt/image.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/cleanup.h"
#include "imgfmt/verify.h"
#include "tests/forge.h"

static const struct image_opts quiet = { .quiet = true };

struct fixture {
	uint8_t *bytes;
	size_t size;
	struct image *img;
	struct chunk_ctx *ctx;
	uint8_t *big, *mix; /* what is in FORGE_BIG and FORGE_MIX */
};

/* the contents of the good image's files, made the way that tests/forge.h makes the chunks */
static void expected(struct fixture *x)
{
	uint8_t *buf = malloc(FORGE_CHUNK);
	uint64_t seed = 88172645463325252u;

	x->big = malloc(3 * FORGE_CHUNK);
	x->mix = calloc(1, 140000);
	CHECK(buf && x->big && x->mix);
	for (uint32_t i = 0; i < 3; i++)
		forge_fill(x->big + (size_t)i * FORGE_CHUNK, FORGE_CHUNK, i * 5000);
	for (size_t i = 0; i < 4096; i += 8) {
		uint64_t v = test_random(&seed);

		memcpy(buf + i, &v, 8);
	}
	memcpy(x->mix, buf + 96, 4000);
	for (uint32_t i = 0; i < 8192; i++)
		((uint32_t *)(void *)buf)[i] = i * i;
	memcpy(x->mix + 100000, buf + 1, 32766);
	forge_fill(buf, FORGE_CHUNK, 40000);
	memcpy(x->mix + 132766, buf, 3000);
	memcpy(x->mix + 135766, buf, 3001);
	memcpy(x->mix + 138767, x->big + 65000, 140000 - 138767);
	free(buf);
}

static void fixture_init(struct fixture *x)
{
	struct source *src;
	struct forge f;

	forge_good(&f);
	x->bytes = forge_build(&f, &x->size);
	forge_free(&f);
	CHECK(source_open_memory(x->bytes, x->size, "good", &src) == 0);
	CHECK_EQ(image_open_source(src, &quiet, &x->img), 0);
	x->ctx = chunk_ctx_new();
	CHECK(x->ctx);
	expected(x);
}

static void fixture_release(struct fixture *x)
{
	chunk_ctx_free(x->ctx);
	image_close(x->img);
	free(x->bytes);
	free(x->big);
	free(x->mix);
}

/* -- files ------------------------------------------------------------------------------------- */

static void test_names(struct fixture *x)
{
	static const struct {
		const char *path;
		int r;
		uint32_t ino;
	} paths[] = {
		{ "", 0, FORGE_ROOT },       { "/", 0, FORGE_ROOT },    { "big", 0, FORGE_BIG },
		{ "d", 0, FORGE_DIR },       { "d/", 0, FORGE_DIR },    { "d/mix", 0, FORGE_MIX },
		{ "/d//big", 0, FORGE_BIG }, { "link", 0, FORGE_LINK }, { "p", 0, FORGE_FIFO },
		{ "nothing", -ENOENT, 0 },   { "bi", -ENOENT, 0 },      { "bigg", -ENOENT, 0 },
		{ "a", -ENOENT, 0 },         { "z", -ENOENT, 0 },       { "d/e", -ENOENT, 0 },
		{ "big/x", -ENOTDIR, 0 },    { "link/x", -ENOTDIR, 0 }, { "..", -ENOENT, 0 },
	};
	static const char *const names[] = { "big", "d", "e", "link", "p" };
	struct image_dirent d;
	uint32_t ino;
	char *path;

	for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
		ino = 0;
		CHECK_EQ(image_walk(x->img, paths[i].path, &ino), paths[i].r);
		CHECK_EQ(ino, paths[i].ino);
	}
	for (uint64_t i = 0; i < ARRAY_SIZE(names); i++) {
		CHECK_EQ(image_readdir(x->img, IMAGE_ROOT, i, &d), 0);
		CHECK(d.len == strlen(names[i]) && !memcmp(d.name, names[i], d.len));
	}
	CHECK_EQ(image_readdir(x->img, IMAGE_ROOT, ARRAY_SIZE(names), &d), -ENOENT);
	CHECK_EQ(image_readdir(x->img, FORGE_BIG, 0, &d), -ENOTDIR);
	CHECK_EQ(image_lookup(x->img, FORGE_BIG, "x", 1, &ino), -ENOTDIR);
	CHECK_EQ(image_inode_path(x->img, FORGE_MIX, &path), 0);
	CHECK_STR(path, "d/mix");
	free(path);
	CHECK_EQ(image_inode_path(x->img, IMAGE_ROOT, &path), 0);
	CHECK_STR(path, "");
	free(path);
	CHECK_EQ(image_inode_path(x->img, FORGE_INODES, &path), -ENOENT);
}

static void test_inodes(struct fixture *x)
{
	struct image_inode i;
	struct image_xattr a;
	const char *target;
	size_t len;

	CHECK_EQ(image_inode(x->img, FORGE_MIX, &i), 0);
	CHECK_EQ(i.mode, S_IFREG | 0600);
	CHECK_EQ(i.size, 140000);
	CHECK_EQ(i.hole_bytes, 96000);
	CHECK_EQ(i.mtime_sec, 1700000000);
	CHECK_EQ(image_inode(x->img, FORGE_INODES, &i), -ENOENT);
	CHECK_EQ(image_readlink(x->img, FORGE_LINK, &target, &len), 0);
	CHECK(len == 5 && !memcmp(target, "d/big", 5));
	CHECK_EQ(image_readlink(x->img, FORGE_BIG, &target, &len), -EINVAL);
	CHECK_EQ(image_inode(x->img, FORGE_BIG, &i), 0);
	CHECK_EQ(i.n_xattrs, 2);
	CHECK_EQ(image_xattr(x->img, &i, 0, &a), 0);
	CHECK(a.name_len == 6 && !memcmp(a.name, "user.a", 6) && a.value_len == 5 && !memcmp(a.value, "value", 5));
	CHECK_EQ(image_xattr(x->img, &i, 1, &a), 0);
	CHECK_EQ(a.value_len, 0);
	CHECK_EQ(image_xattr(x->img, &i, 2, &a), -ENOENT);
}

/* -- bytes ------------------------------------------------------------------------------------- */

static void test_map(struct fixture *x)
{
	static const struct {
		uint32_t ino;
		uint64_t off, len;
		enum run_kind kind;
		uint32_t chunk, chunk_off;
	} runs[] = {
		{ FORGE_BIG, 0, 65536, RUN_DATA, 0, 0 },      { FORGE_BIG, 65535, 1, RUN_DATA, 0, 65535 },
		{ FORGE_BIG, 65536, 65536, RUN_DATA, 1, 0 },  { FORGE_BIG, 149999, 1, RUN_DATA, 2, 18927 },
		{ FORGE_MIX, 0, 4000, RUN_DATA, 3, 96 },      { FORGE_MIX, 3999, 1, RUN_DATA, 3, 4095 },
		{ FORGE_MIX, 4000, 96000, RUN_HOLE, 0, 0 },   { FORGE_MIX, 99999, 1, RUN_HOLE, 0, 0 },
		{ FORGE_MIX, 100000, 32766, RUN_DATA, 4, 1 }, { FORGE_MIX, 138767, 536, RUN_DATA, 0, 65000 },
		{ FORGE_MIX, 139303, 697, RUN_DATA, 1, 0 },
	};
	struct image_run run;

	for (size_t i = 0; i < ARRAY_SIZE(runs); i++) {
		CHECK_EQ(image_map(x->img, runs[i].ino, runs[i].off, &run), 0);
		CHECK_EQ(run.off, runs[i].off);
		CHECK_EQ(run.len, runs[i].len);
		CHECK_EQ(run.kind, runs[i].kind);
		if (run.kind != RUN_DATA)
			continue;
		CHECK_EQ(run.chunk, runs[i].chunk);
		CHECK_EQ(run.chunk_off, runs[i].chunk_off);
		CHECK(run.img == x->img);
	}
	CHECK_EQ(image_map(x->img, FORGE_BIG, 150000, &run), -ENXIO);
	CHECK_EQ(image_map(x->img, FORGE_BIG, UINT64_MAX, &run), -ENXIO);
	CHECK_EQ(image_map(x->img, FORGE_EMPTY, 0, &run), -ENXIO);
	CHECK_EQ(image_map(x->img, FORGE_DIR, 0, &run), -EISDIR);
	CHECK_EQ(image_map(x->img, FORGE_LINK, 0, &run), -EINVAL);
}

static void test_seek(struct fixture *x)
{
	static const struct {
		uint32_t ino;
		uint64_t off;
		bool hole;
		int r;
		uint64_t want;
	} seeks[] = {
		{ FORGE_MIX, 0, false, 0, 0 },           { FORGE_MIX, 0, true, 0, 4000 },
		{ FORGE_MIX, 4000, false, 0, 100000 },   { FORGE_MIX, 50000, true, 0, 50000 },
		{ FORGE_MIX, 100000, true, 0, 140000 },  { FORGE_MIX, 139999, false, 0, 139999 },
		{ FORGE_MIX, 140000, false, -ENXIO, 0 }, { FORGE_MIX, 140000, true, -ENXIO, 0 },
		{ FORGE_BIG, 0, true, 0, 150000 },       { FORGE_EMPTY, 0, false, -ENXIO, 0 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(seeks); i++) {
		uint64_t off = 0;

		CHECK_EQ(image_seek(x->img, seeks[i].ino, seeks[i].off, seeks[i].hole, &off), seeks[i].r);
		CHECK_EQ(off, seeks[i].want);
	}
}

static void check_read(struct fixture *x, uint32_t ino, const uint8_t *want, uint64_t off, size_t len)
{
	uint8_t *buf = malloc(len + 1);

	CHECK(buf);
	memset(buf, 0xee, len + 1);
	CHECK_EQ(image_read(x->img, x->ctx, ino, off, buf, len), 0);
	CHECK(!memcmp(buf, want + off, len));
	CHECK_EQ(buf[len], 0xee);
	free(buf);
}

static void test_read(struct fixture *x)
{
	uint64_t seed = 99;
	uint8_t byte;

	check_read(x, FORGE_BIG, x->big, 0, 150000);
	check_read(x, FORGE_MIX, x->mix, 0, 140000);
	for (int i = 0; i < 300; i++) {
		uint64_t a = test_random(&seed) % 140000, n = test_random(&seed) % 6000;

		n = min_u64(n, 140000 - a);
		check_read(x, FORGE_BIG, x->big, a, n);
		check_read(x, FORGE_MIX, x->mix, a, n);
	}
	CHECK_EQ(image_read(x->img, x->ctx, FORGE_BIG, 149999, &byte, 1), 0);
	CHECK_EQ(image_read(x->img, x->ctx, FORGE_BIG, 150000, &byte, 1), -ENXIO);
	CHECK_EQ(image_read(x->img, x->ctx, FORGE_BIG, UINT64_MAX, &byte, 1), -ENXIO);
}

static void test_chunks(struct fixture *x)
{
	struct image_chunk c;
	struct image *from;
	uint8_t *buf = guarded_buffer(FORGE_CHUNK);
	uint32_t len, number;

	CHECK_EQ(image_info(x->img)->n_chunks, 7);
	CHECK_EQ(image_chunk(x->img, 3, &c), 0);
	CHECK_EQ(c.codec, THAW_RAW);
	CHECK_EQ(c.stored_off % THAW_PAGE, 0);
	CHECK_EQ(image_chunk(x->img, 7, &c), -EBADMSG);
	CHECK_EQ(image_chunk_read(x->img, x->ctx, 7, buf, &len), -EBADMSG);
	for (uint32_t i = 0; i < 3; i++) {
		CHECK_EQ(image_chunk_read(x->img, x->ctx, i, buf, &len), 0);
		CHECK_EQ(len, i < 2 ? FORGE_CHUNK : 18928);
		CHECK(!memcmp(buf, x->big + (size_t)i * FORGE_CHUNK, len));
	}
	CHECK_EQ(image_chunk_resolve(x->img, 2, &from, &number), 0);
	CHECK(from == x->img && number == 2);
}

/* -- address spaces ---------------------------------------------------------------------------- */

static void test_space(struct fixture *x)
{
	struct image_space s;
	struct image_region g;
	struct image_run run;
	uint32_t i;
	uint64_t size;

	CHECK_EQ(image_space_find(x->img, "77", 2, &i), 0);
	CHECK_EQ(i, 0);
	CHECK_EQ(image_space_find(x->img, "7", 1, &i), -ENOENT);
	CHECK_EQ(image_space_find(x->img, "777", 3, &i), -ENOENT);
	CHECK_EQ(image_space(x->img, 1, &s), -ENOENT);
	CHECK_EQ(image_space(x->img, 0, &s), 0);
	CHECK_EQ(s.n_regions, 3);
	CHECK_EQ(image_region(x->img, &s, 2, &g), 0);
	CHECK_EQ(g.addr + g.len, 0); /* 2^64 */
	CHECK_EQ(image_region(x->img, &s, 3, &g), -ENOENT);
	CHECK_EQ(image_view_size(x->img, &s, &size), 0);
	CHECK_EQ(size, 0x403000);

	static const struct {
		uint64_t addr;
		uint32_t region, segment;
	} at[] = {
		{ 0, 0, 0 },       { 0x10000, 0, 0 },  { 0x1ffff, 0, 0 },  { 0x20000, 0, 1 },    { 0x21000, 0, 2 },
		{ 0x30000, 1, 2 }, { 0x402fff, 1, 4 }, { 0x403000, 2, 4 }, { UINT64_MAX, 2, 4 },
	};
	for (size_t k = 0; k < ARRAY_SIZE(at); k++) {
		CHECK_EQ(image_region_at(x->img, &s, at[k].addr, &i), 0);
		CHECK_EQ(i, at[k].region);
		CHECK_EQ(image_segment_at(x->img, &s, at[k].addr, &i), 0);
		CHECK_EQ(i, at[k].segment);
	}

	static const struct {
		uint64_t addr, len;
		enum run_kind kind;
		uint32_t chunk, chunk_off;
	} runs[] = {
		{ 0, 0x10000, RUN_HOLE, 0, 0 },
		{ 0x10000, 64536, RUN_DATA, 0, 1000 },
		{ 0x10000 + 64536, 1000, RUN_DATA, 1, 0 },
		{ 0x20000, 0x1000, RUN_HOLE, 0, 0 },
		{ 0x21000, 0x400000 - 0x21000, RUN_HOLE, 0, 0 },
		{ 0x400000, 1000, RUN_HOLE, 0, 0 },
		{ 0x400000 + 1000, 4096 - 1000, RUN_DATA, 4, 1 },
		{ 0x401000, 0x1000, RUN_ABSENT, 0, 0 },
		{ 0x402000, 0x8000000000000000 - 0x402000, RUN_HOLE, 0, 0 },
	};
	for (size_t k = 0; k < ARRAY_SIZE(runs); k++) {
		CHECK_EQ(image_map_view(x->img, &s, runs[k].addr, &run), 0);
		CHECK_EQ(run.off, runs[k].addr);
		CHECK_EQ(run.len, runs[k].len);
		CHECK_EQ(run.kind, runs[k].kind);
		if (run.kind != RUN_DATA)
			continue;
		CHECK_EQ(run.chunk, runs[k].chunk);
		CHECK_EQ(run.chunk_off, runs[k].chunk_off);
	}
	CHECK_EQ(image_map_view(x->img, &s, 0x8000000000000000, &run), -ENXIO);
}

static void test_read_view(struct fixture *x)
{
	uint8_t buf[0x3000], zeros[0x1000] = { 0 };

	CHECK_EQ(image_read_view(x->img, x->ctx, 0, 0x1f000, buf, 0x3000), 0);
	CHECK(!memcmp(buf, x->big + 1000 + 0xf000, 0x1000));
	CHECK(!memcmp(buf + 0x1000, zeros, 0x1000) && !memcmp(buf + 0x2000, zeros, 0x1000));
	CHECK_EQ(image_read_view(x->img, x->ctx, 0, 0x400000, buf, 0x1000), 0);
	CHECK(!memcmp(buf, x->mix + 99000, 0x1000));
	/* never zeros for what is not there */
	CHECK_EQ(image_read_view(x->img, x->ctx, 0, 0x400fff, buf, 2), -ENODATA);
	CHECK_EQ(image_read_view(x->img, x->ctx, 0, 0x402000, buf, 0x1000), 0);
	CHECK(!memcmp(buf, zeros, 0x1000));
	CHECK_EQ(image_read_view(x->img, x->ctx, 1, 0, buf, 1), -ENOENT);
}

/* -- threads ----------------------------------------------------------------------------------- */

#define THREADS 8

struct shared {
	struct fixture *x;
	struct image *img;
	_Atomic unsigned started;
};

/* all begin at once on an image whose index nobody has touched */
static void *read_often(void *arg)
{
	struct shared *s = arg;
	struct chunk_ctx *ctx = chunk_ctx_new();
	uint64_t seed = 1000003 + atomic_fetch_add(&s->started, 1);
	uint8_t buf[3000];

	CHECK(ctx);
	while (atomic_load(&s->started) < THREADS)
		;
	for (int i = 0; i < 200; i++) {
		uint64_t off = test_random(&seed) % (140000 - sizeof(buf));
		bool big = test_random(&seed) % 2;
		uint32_t ino;

		CHECK_EQ(image_walk(s->img, big ? "d/big" : "d/mix", &ino), 0);
		CHECK_EQ(image_read(s->img, ctx, ino, off, buf, sizeof(buf)), 0);
		CHECK(!memcmp(buf, (big ? s->x->big : s->x->mix) + off, sizeof(buf)));
		CHECK_EQ(image_read_view(s->img, ctx, 0, 0x10000 + off % 60000, buf, 1000), 0);
		CHECK(!memcmp(buf, s->x->big + 1000 + off % 60000, 1000));
	}
	chunk_ctx_free(ctx);
	return NULL;
}

static void test_threads(struct fixture *x)
{
	for (int round = 0; round < 5; round++) {
		struct shared s = { .x = x };
		pthread_t threads[THREADS];
		struct source *src;

		CHECK(source_open_memory(x->bytes, x->size, "shared", &src) == 0);
		CHECK_EQ(image_open_source(src, &quiet, &s.img), 0);
		for (size_t i = 0; i < THREADS; i++)
			CHECK(pthread_create(&threads[i], NULL, read_often, &s) == 0);
		for (size_t i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		image_close(s.img);
	}
}

/* -- a file that is cut under the reader: errors, no signal ------------------------------------ */

static void test_cut(struct fixture *x)
{
	char path[] = "/tmp/thaw-test-reader.XXXXXX";
	_cleanup_close_ int fd = mkstemp(path);
	const struct verify_opts opts = { .threads = 2 };
	struct verify_result result;
	struct image *img, *fresh;
	struct image_chunk c;
	uint8_t *buf = malloc(150000);
	uint32_t ino;

	CHECK(fd >= 0 && buf);
	CHECK(write(fd, x->bytes, x->size) == (ssize_t)x->size);
	CHECK_EQ(image_open(path, &quiet, &img), 0);
	CHECK_EQ(image_open(path, &quiet, &fresh), 0);
	CHECK_EQ(image_walk(img, "d/mix", &ino), 0);
	CHECK_EQ(image_read(img, x->ctx, ino, 0, buf, 140000), 0);
	CHECK_EQ(image_chunk(img, 3, &c), 0);
	CHECK(ftruncate(fd, (off_t)c.stored_off + 5) == 0);
	/* what is not cut is still there, what is cut is an error of the source; the index that was read stays */
	CHECK_EQ(image_read(img, x->ctx, FORGE_BIG, 0, buf, 1000), 0);
	CHECK(!memcmp(buf, x->big, 1000));
	CHECK_EQ(image_read(img, x->ctx, FORGE_MIX, 0, buf, 1000), -EIO);
	CHECK_EQ(image_walk(img, "d/big", &ino), 0);
	CHECK_EQ(image_walk(fresh, "d/big", &ino), -EIO);
	CHECK_EQ(image_check(fresh, &opts, &result), 0);
	CHECK(result.n_index_errors > 0);
	image_close(img);
	image_close(fresh);
	CHECK_EQ(image_open(path, &quiet, &img), -EBADMSG);
	CHECK(unlink(path) == 0);
	CHECK_EQ(image_open(path, &quiet, &img), -ENOENT);
	free(buf);
}

/* -- bases ------------------------------------------------------------------------------------- */

static void write_image(const char *dir, const char *name, const struct forge *f, uint8_t ret_id[16])
{
	char path[4096];
	size_t size;
	uint8_t *bytes = forge_build(f, &size);
	FILE *file;

	memcpy(ret_id, bytes + size - THAW_PAGE + offsetof(struct thaw_footer, image_id), 16);
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	file = fopen(path, "wb");
	CHECK(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
	free(bytes);
}

/* an image whose chunk 0 is chunk @index of the base with that id */
static void forge_on_base(struct forge *f, const uint8_t id[16], const char *name, uint32_t index)
{
	struct thaw_base b = { .name_off = le64_make(0), .name_len = le32_make((uint32_t)strlen(name)) };
	struct thaw_chunk *c;

	forge_good(f);
	b.name_off = le64_make(forge_string(f, name, strlen(name)));
	memcpy(b.image_id, id, 16);
	forge_add(&f->sections[THAW_BASES], &b, sizeof(b));
	f->incompat |= THAW_INCOMPAT_BASE;
	c = FORGE_ENTRY(f, THAW_CHUNKS, struct thaw_chunk, 0);
	c->base = le16_make(1);
	c->codec = 0;
	c->stored_len = le32_make(0);
	c->stored_off = le64_make(index);
}

static int read_big(struct fixture *x, const char *path)
{
	uint8_t buf[1000];
	struct image *img;
	int r;

	CHECK_EQ(image_open(path, &quiet, &img), 0);
	r = image_read(img, x->ctx, FORGE_BIG, 0, buf, sizeof(buf));
	CHECK(r || !memcmp(buf, x->big, sizeof(buf)));
	image_close(img);
	return r;
}

static void test_bases(struct fixture *x)
{
	char dir[] = "/tmp/thaw-test-reader.XXXXXX", path[64], base[64];
	uint8_t id[16], second[16], none[16];
	struct forge f;

	CHECK(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/top.thaw", dir);
	snprintf(base, sizeof(base), "%s/base.thaw", dir);
	forge_good(&f);
	write_image(dir, "base.thaw", &f, id);
	forge_free(&f);
	/* found by its name, then, with another name in the entry, by its id */
	forge_on_base(&f, id, "base.thaw", 0);
	write_image(dir, "top.thaw", &f, second);
	forge_free(&f);
	CHECK_EQ(read_big(x, path), 0);
	forge_on_base(&f, id, "renamed.thaw", 0);
	write_image(dir, "top.thaw", &f, none);
	forge_free(&f);
	CHECK_EQ(read_big(x, path), 0);
	/* another chunk of the base, with another hash; one that it has not */
	forge_on_base(&f, id, "base.thaw", 1);
	write_image(dir, "top.thaw", &f, none);
	forge_free(&f);
	CHECK_EQ(read_big(x, path), -EBADMSG);
	forge_on_base(&f, id, "base.thaw", UINT32_MAX);
	write_image(dir, "top.thaw", &f, none);
	forge_free(&f);
	CHECK_EQ(read_big(x, path), -EBADMSG);
	/* a chunk of the base that is itself in a base, which is how a chain would begin: refused */
	forge_on_base(&f, id, "base.thaw", 0);
	write_image(dir, "middle.thaw", &f, second);
	forge_free(&f);
	forge_on_base(&f, second, "middle.thaw", 0);
	write_image(dir, "top.thaw", &f, none);
	forge_free(&f);
	CHECK_EQ(read_big(x, path), -EBADMSG);
	/* the same name with another id is not the base */
	forge_on_base(&f, none, "base.thaw", 0);
	f.compat = 1;
	write_image(dir, "top.thaw", &f, second);
	forge_free(&f);
	CHECK(unlink(base) == 0);
	CHECK_EQ(read_big(x, path), -ENOENT);
	CHECK(unlink(path) == 0);
	snprintf(path, sizeof(path), "%s/middle.thaw", dir);
	CHECK(unlink(path) == 0);
	CHECK(rmdir(dir) == 0);
}

/* -- the whole --------------------------------------------------------------------------------- */

static void test_info(struct fixture *x)
{
	const struct image_info *i = image_info(x->img);
	const char *json;
	char id[33];
	size_t len;

	CHECK_EQ(i->chunk_size, FORGE_CHUNK);
	CHECK_EQ(i->file_size, x->size);
	CHECK_EQ(i->n_inodes, FORGE_INODES);
	CHECK_EQ(i->n_files, 3);
	CHECK_EQ(i->n_dirs, 2);
	CHECK_EQ(i->logical_bytes, 290000);
	CHECK_EQ(i->hole_bytes, 96000);
	CHECK_EQ(i->n_chunks_lz4, 2);
	CHECK_EQ(i->n_chunks_shuffled, 2);
	CHECK_EQ(image_properties(x->img, &json, &len), 0);
	CHECK(len == 17 && !memcmp(json, "{\"source\":\"core\"}", 17));
	image_id_text((const uint8_t[16]){ 0x01, 0xab }, id);
	CHECK_STR(id, "01ab0000000000000000000000000000");
}

int main(void)
{
	struct fixture x;

	alarm(300);
	fixture_init(&x);
	test_info(&x);
	test_names(&x);
	test_inodes(&x);
	test_map(&x);
	test_seek(&x);
	test_read(&x);
	test_chunks(&x);
	test_space(&x);
	test_read_view(&x);
	test_threads(&x);
	test_cut(&x);
	test_bases(&x);
	fixture_release(&x);
	return 0;
}
