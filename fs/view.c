/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/view.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/describe.h"

/* what a mount shows at most; an image with more keeps its members and loses its views */
#define MAX_NODES  (1u << 20)
#define MAX_DEPTH  64
#define TEXTS_KEPT 8 /* maps texts of one image that stay made */
#define TEXT_MAX   ((size_t)256 << 20)

struct entry {
	const char *name;
	uint32_t name_len;
	uint32_t parent, depth;
	bool is_dir;
	uint32_t space;          /* a leaf's; the first below a directory */
	uint32_t space_end;      /* one past the last below a directory */
	uint32_t prefix;         /* a directory: bytes of its spaces' names up to and with its last '/' */
	uint32_t first, n_below; /* a directory's entries, by name */
};

struct known_size {
	bool known;
	struct view_size size;
};

struct views {
	struct image *img;
	struct entry *entries;
	uint32_t n, room;
	/* under lock */
	pthread_mutex_t lock;
	struct known_size *sizes; /* by number */
	struct text *info;
	struct kept {
		uint32_t number;
		struct text *text;
	} kept[TEXTS_KEPT];
	unsigned next_kept;
};

static int add_entry(struct views *views, const struct entry *entry)
{
	if (views->n == MAX_NODES || entry->depth > MAX_DEPTH)
		return -EFBIG;
	if (views->n == views->room) {
		uint32_t room = views->room ? views->room * 2 : 64;
		struct entry *p = realloc(views->entries, room * sizeof(*p));

		if (!p)
			return -ENOMEM;
		views->entries = p;
		views->room = room;
	}
	views->entries[views->n++] = *entry;
	return 0;
}

static int compare_names(const char *a, size_t a_len, const char *b, size_t b_len)
{
	int order = memcmp(a, b, min_u64(a_len, b_len));

	return order ? order : (a_len > b_len) - (a_len < b_len);
}

static int by_name(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return compare_names(x->name, x->name_len, y->name, y->name_len);
}

/* is there a space whose whole name is what comes before the directory's last '/'? Then that one has the name */
static bool hidden_by_leaf(struct image *img, const char *name, size_t len)
{
	uint32_t space;

	return image_space_find(img, name, len, &space) == 0;
}

/* add what stands directly in directory @dir: spaces of one next name component are neighbours */
static int expand(struct views *views, uint32_t dir)
{
	const struct entry at = views->entries[dir];
	uint32_t first = views->n;

	for (uint32_t i = at.space; i < at.space_end;) {
		struct entry e = { .parent = dir, .depth = at.depth + 1, .space = i };
		struct image_space space;
		const char *slash, *rest;
		int err = image_space(views->img, i, &space);

		if (err)
			return err;
		rest = space.name + at.prefix;
		slash = memchr(rest, '/', space.name_len - at.prefix);
		e.name = rest;
		e.name_len = slash ? (uint32_t)(slash - rest) : space.name_len - at.prefix;
		e.is_dir = slash != NULL;
		e.prefix = at.prefix + e.name_len + 1;
		for (i++; e.is_dir && i < at.space_end; i++) {
			struct image_space next;

			err = image_space(views->img, i, &next);
			if (err)
				return err;
			if (next.name_len < e.prefix || memcmp(next.name, space.name, e.prefix) != 0)
				break;
		}
		e.space_end = i;
		if (e.name_len > NAME_MAX)
			continue; /* no file name can be so long */
		if (e.is_dir && hidden_by_leaf(views->img, space.name, e.prefix - 1)) {
			log_note("'%s': address spaces below '%.*s' are not shown, it is one itself",
				 image_path(views->img), (int)e.prefix - 1, space.name);
			continue;
		}
		err = add_entry(views, &e);
		if (err)
			return err;
	}
	views->entries[dir].first = first;
	views->entries[dir].n_below = views->n - first;
	qsort(views->entries + first, views->n - first, sizeof(struct entry), by_name);
	return 0;
}

static int build(struct views *views)
{
	uint64_t n_spaces = image_info(views->img)->n_spaces;
	struct entry root = { .is_dir = true, .name = "" };
	int err;

	root.space_end = (uint32_t)min_u64(n_spaces, MAX_NODES);
	err = add_entry(views, &root);
	for (uint32_t i = 0; !err && i < views->n; i++)
		if (views->entries[i].is_dir)
			err = expand(views, i);
	return err;
}

int views_new(struct image *img, struct views **ret)
{
	struct views *views = calloc(1, sizeof(*views));
	int err;

	if (!views)
		return -ENOMEM;
	views->img = img;
	pthread_mutex_init(&views->lock, NULL);
	err = build(views);
	if (err == -EFBIG) {
		log_warn("cannot show the memory views of '%s': too many of them, or their names too deep",
			 image_path(img));
		views->entries[0].n_below = 0;
		views->n = 1;
		err = 0;
	}
	/* one more than needed, for the checker that does not see that there is a root */
	if (!err && !(views->sizes = calloc(views->n + 1, sizeof(*views->sizes))))
		err = -ENOMEM;
	if (err) {
		views_free(views);
		return err;
	}
	*ret = views;
	return 0;
}

void views_free(struct views *views)
{
	if (!views)
		return;
	for (unsigned i = 0; i < TEXTS_KEPT; i++)
		text_put(views->kept[i].text);
	text_put(views->info);
	pthread_mutex_destroy(&views->lock);
	free(views->sizes);
	free(views->entries);
	free(views);
}

int views_node(const struct views *views, uint32_t number, struct view_node *ret)
{
	const struct entry *e;

	if (number >= views->n)
		return -ESTALE;
	e = &views->entries[number];
	*ret = (struct view_node){
		.name = e->name, .name_len = e->name_len, .parent = e->parent, .is_dir = e->is_dir, .space = e->space
	};
	return 0;
}

int views_lookup(const struct views *views, uint32_t dir, const char *name, size_t len, uint32_t *ret_number)
{
	uint32_t lo, hi;

	if (dir >= views->n || !views->entries[dir].is_dir)
		return -ENOENT;
	lo = views->entries[dir].first;
	hi = lo + views->entries[dir].n_below;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		const struct entry *e = &views->entries[mid];
		int order = compare_names(name, len, e->name, e->name_len);

		if (order == 0) {
			*ret_number = mid;
			return 0;
		}
		if (order < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return -ENOENT;
}

int views_child(const struct views *views, uint32_t dir, uint64_t index, uint32_t *ret_number)
{
	if (dir >= views->n || index >= views->entries[dir].n_below)
		return -ENOENT;
	*ret_number = views->entries[dir].first + (uint32_t)index;
	return 0;
}

static int measure(struct image *img, uint32_t number, struct view_size *ret)
{
	struct view_size size = { 0 };
	struct image_space space;
	struct image_run run = { 0 };
	int err = image_space(img, number, &space);

	if (!err)
		err = image_view_size(img, &space, &size.size);
	for (uint64_t at = 0; !err && at < size.size; at = run.off + run.len) {
		err = image_map_view(img, &space, at, &run);
		if (err == -ENOENT) {
			/* in a base that is missing: as large as its segment says */
			uint32_t index;
			struct image_segment seg = { 0 };

			err = image_segment_at(img, &space, at, &index);
			if (!err)
				err = image_segment(img, &space, index, &seg);
			run = (struct image_run){ .off = at, .len = seg.addr + seg.len - at, .kind = RUN_ABSENT };
		}
		if (!err && run.kind != RUN_HOLE)
			size.data_bytes += run.len;
	}
	if (!err)
		*ret = size;
	return err;
}

int views_size(struct views *views, uint32_t number, struct view_size *ret)
{
	struct view_size size;
	int err;

	if (number >= views->n || views->entries[number].is_dir)
		return -ESTALE;
	{
		LOCK_GUARD(&views->lock);
		if (views->sizes[number].known) {
			*ret = views->sizes[number].size;
			return 0;
		}
	}
	err = measure(views->img, views->entries[number].space, &size);
	if (err)
		return err;
	LOCK_GUARD(&views->lock);
	views->sizes[number] = (struct known_size){ .known = true, .size = size };
	*ret = size;
	return 0;
}

void text_put(struct text *text)
{
	if (!text || atomic_fetch_sub(&text->refs, 1) != 1)
		return;
	free(text->data);
	free(text);
}

/* takes @data, also on failure */
static int text_new(char *data, size_t len, struct text **ret)
{
	struct text *text = len <= TEXT_MAX ? malloc(sizeof(*text)) : NULL;

	if (!text) {
		free(data);
		return len <= TEXT_MAX ? -ENOMEM : -EFBIG;
	}
	text->refs = 1;
	text->len = len;
	text->data = data;
	*ret = text;
	return 0;
}

static struct text *text_get(struct text *text)
{
	if (text)
		atomic_fetch_add(&text->refs, 1);
	return text;
}

static struct text *find_kept(struct views *views, uint32_t number)
{
	LOCK_GUARD(&views->lock);
	for (unsigned i = 0; i < TEXTS_KEPT; i++)
		if (views->kept[i].text && views->kept[i].number == number)
			return text_get(views->kept[i].text);
	return NULL;
}

int views_maps(struct views *views, uint32_t number, struct text **ret)
{
	struct text *text, *old;
	char *data;
	size_t len;
	int err;

	if (number >= views->n || views->entries[number].is_dir)
		return -ESTALE;
	*ret = find_kept(views, number);
	if (*ret)
		return 0;
	err = describe_maps_text(views->img, views->entries[number].space, &data, &len);
	if (!err)
		err = text_new(data, len, &text);
	if (err)
		return err;
	LOCK_GUARD(&views->lock);
	old = views->kept[views->next_kept].text;
	views->kept[views->next_kept] = (struct kept){ .number = number, .text = text_get(text) };
	views->next_kept = (views->next_kept + 1) % TEXTS_KEPT;
	text_put(old);
	*ret = text;
	return 0;
}

int views_info(struct views *views, struct text **ret)
{
	char *data;
	size_t len;
	int err;

	LOCK_GUARD(&views->lock);
	if (!views->info) {
		err = describe_info_json(views->img, &data, &len);
		if (!err)
			err = text_new(data, len, &views->info);
		if (err)
			return err;
	}
	*ret = text_get(views->info);
	return 0;
}
