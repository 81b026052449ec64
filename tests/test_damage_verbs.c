/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands on the reader (diff, flatten, usage, locate, describe, walk) over images whose index says anything at all
 * under checksums that are right: it may fail, but only with an error that fits, within bounds and in time. What
 * flatten accepts must be good, and so must be what it makes.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "common/log.h"
#include "imgfmt/describe.h"
#include "imgfmt/diff.h"
#include "imgfmt/flatten.h"
#include "imgfmt/locate.h"
#include "imgfmt/usage.h"
#include "imgfmt/verify.h"
#include "imgfmt/walk.h"
#include "tests/forge.h"

#define LIMIT_SECONDS 120

static const struct image_opts quiet = { .quiet = true };

static void drop(enum log_level level, const char *line, void *ctx)
{
	(void)level, (void)ctx;
	/* messages are whole lines, whatever the names in them are */
	CHECK(!strchr(line, '\n'));
}

static void check_error(int r)
{
	if (r != 0 && r != -EBADMSG && r != -ENOENT && r != -EPROTONOSUPPORT && r != -EINVAL && r != -ENODATA) {
		fprintf(stderr, "error %d: %s\n", -r, strerror(-r));
		exit(1);
	}
}

static int on_member(void *ctx, const struct diff_member *m)
{
	(void)ctx;
	CHECK(m->flags && (m->a || m->b) && m->path);
	CHECK(!(m->flags & DIFF_ONLY_A) == (m->b != NULL) || (m->a && m->b));
	return 0;
}

static int on_region(void *ctx, const struct diff_region *g)
{
	(void)ctx;
	CHECK(g->flags && (g->a || g->b));
	CHECK(g->bytes <= (g->len ? g->len : UINT64_MAX) && g->unknown_bytes <= (g->len ? g->len : UINT64_MAX));
	return 0;
}

static int on_range(void *ctx, const struct diff_member *m, const struct diff_region *g, uint64_t off, uint64_t len,
		    bool unknown)
{
	(void)ctx, (void)unknown;
	CHECK(!m != !g && len && off + len > off);
	return 0;
}

static void try_diff(struct image *a, struct image *b, bool pages)
{
	const struct diff_opts opts = {
		.times = true, .pages = pages, .member = on_member, .region = on_region, .range = on_range
	};
	struct diff_result res;

	check_error(image_diff(a, b, &opts, &res));
}

static int on_hit(void *ctx, const struct locate_hit *hit)
{
	(void)ctx;
	CHECK(hit->len && hit->path);
	return 0;
}

static void try_locate(struct image *img)
{
	uint32_t chunks[64], n = 0;

	for (; n < 64 && n < image_info(img)->n_chunks; n++)
		chunks[n] = n;
	check_error(locate_chunks(img, chunks, n, on_hit, NULL));
}

static void try_usage(struct image *img)
{
	struct usage_sum sum = { 0 };
	struct usage *usage;
	struct walk w;
	int r = usage_new(img, &usage);

	check_error(r);
	if (r)
		return;
	r = walk_start(&w, img, IMAGE_ROOT, "");
	check_error(r);
	if (!r) {
		while ((r = walk_next(&w)) == 1)
			check_error(usage_add_file(usage, &w.inode, &sum));
		check_error(r);
		walk_release(&w);
	}
	usage_free(usage);
}

static void try_describe(struct image *img)
{
	char *text;
	size_t len;
	int r = describe_info_json(img, &text, &len);

	check_error(r);
	if (!r) {
		CHECK(len == strlen(text) && text[len - 1] == '\n');
		free(text);
	}
	for (uint32_t i = 0; i < image_info(img)->n_spaces && i < 4; i++) {
		r = describe_maps_text(img, i, &text, &len);
		check_error(r);
		if (!r)
			free(text);
	}
}

static uint64_t damage_of(struct image *img)
{
	const struct verify_opts opts = { .threads = 1 };
	struct verify_result res;

	CHECK_EQ(image_check(img, &opts, &res), 0);
	return res.n_damaged + res.n_index_errors;
}

static void try_flatten(struct image *img, const char *path)
{
	const struct flatten_opts opts = { .out = path, .no_fsync = true };
	uint64_t damage = damage_of(img);
	struct pack_result res;
	struct image *copy;
	int r;

	unlink(path);
	r = image_flatten(img, &opts, &res);
	check_error(r);
	if (r) {
		CHECK(access(path, F_OK) != 0);
		return;
	}
	CHECK_EQ(image_open(path, &quiet, &copy), 0);
	CHECK(!memcmp(image_info(copy)->id, res.id, 16));
	/* an image that is damaged anywhere does not become one that looks good */
	CHECK_EQ(damage, 0);
	CHECK_EQ(damage_of(copy), 0);
	image_close(copy);
}

/* numbers that borders are made of */
static uint64_t odd_number(uint64_t *seed)
{
	static const uint64_t odd[] = { 0,          1,          2,          7,          255,         4095,
					4096,       65535,      65536,      0x7fffffff, 0x80000000u, 0xfffffffe,
					0xffffffff, 1ull << 62, 1ull << 63, UINT64_MAX };
	uint64_t r = test_random(seed);

	return r % 3 == 0 ? odd[(r >> 8) % ARRAY_SIZE(odd)] : r % 3 == 1 ? (r >> 8) % 12 : (r >> 8) % 200000;
}

/* change one to three fields somewhere in the tables */
static void lie(struct forge *f, uint64_t *seed)
{
	unsigned n = 1 + test_random(seed) % 3;

	while (n) {
		struct forge_section *s = &f->sections[1 + test_random(seed) % (THAW_SECTION_TYPES - 1)];
		size_t width = 1u << test_random(seed) % 4, at;
		uint64_t v;

		if (!s->data || s->len < width)
			continue;
		n--;
		at = test_random(seed) % (s->len / width) * width;
		v = htole64(odd_number(seed));
		memcpy(s->data + at, &v, width);
	}
}

static int open_forged(const struct forge *f, uint8_t **ret_bytes, struct image **ret)
{
	struct source *src;
	size_t size;

	*ret_bytes = forge_build(f, &size);
	CHECK_EQ(source_open_memory(*ret_bytes, size, "forged", &src), 0);
	return image_open_source(src, &quiet, ret);
}

static void one_round(struct image *good, uint64_t seed, const char *path)
{
	struct image *img;
	uint8_t *bytes;
	struct forge f;
	int r;

	forge_good(&f);
	lie(&f, &seed);
	r = open_forged(&f, &bytes, &img);
	check_error(r);
	if (!r) {
		try_describe(img);
		try_usage(img);
		try_locate(img);
		try_diff(img, good, seed & 1);
		try_diff(good, img, seed & 2);
		try_flatten(img, path);
		image_close(img);
	}
	free(bytes);
	forge_free(&f);
}

int main(int argc, char **argv)
{
	const char *is_long = getenv("THAW_LONG");
	uint64_t rounds = is_long && !strcmp(is_long, "1") ? 100000 : 3000;
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1; /* a seed that failed */
	char path[] = "/tmp/thaw-flat.XXXXXX";
	struct image *good;
	uint8_t *bytes;
	struct forge f;
	int fd = mkstemp(path);

	CHECK(fd >= 0);
	close(fd);
	alarm((unsigned)(LIMIT_SECONDS * (rounds > 3000 ? 20 : 1)));
	log_set_sink(drop, NULL);
	forge_good(&f);
	CHECK_EQ(open_forged(&f, &bytes, &good), 0);
	CHECK_EQ(damage_of(good), 0);
	try_flatten(good, path);
	CHECK_EQ(access(path, F_OK), 0);
	for (uint64_t seed = first; seed < first + (argc > 1 ? 1 : rounds); seed++) {
		/* what a crash or a hang says last */
		if (seed % 500 == 1)
			fprintf(stderr, "from seed %" PRIu64 "\n", seed);
		one_round(good, seed * 0x9e3779b97f4a7c15u, path);
	}
	image_close(good);
	free(bytes);
	forge_free(&f);
	unlink(path);
	return 0;
}
