/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/show.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "imgfmt/series.h"

static const char *const meta_names[META_NUMBERS] = {
	[META_BY_ID] = "by-id",
	[META_VERSION] = "version",
	[META_STATUS] = "status.json",
	[META_METRICS] = "metrics",
};

static void put_slot(struct slot **slot)
{
	slot_put(*slot);
}
#define _cleanup_slot_ _cleanup_(put_slot)

int show_node(const struct fs *fs, uint64_t id, struct node *ret)
{
	struct node node;
	int err = node_decode(id, &node);

	if (err)
		return err;
	if (!fs->cfg.store && node.kind == NODE_META && node.number == META_ROOT)
		node = (struct node){ .kind = NODE_MEMBER, .number = IMAGE_ROOT };
	*ret = node;
	return 0;
}

static bool is_mount_root(const struct fs *fs, const struct node *node)
{
	return !fs->cfg.store && node->kind == NODE_MEMBER && node->number == IMAGE_ROOT && !node->by_id;
}

uint64_t show_id(const struct fs *fs, const struct node *node)
{
	struct node root = { .kind = NODE_META, .number = META_ROOT };

	return node_encode(is_mount_root(fs, node) ? &root : node);
}

/* -- lookup ----------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int parse_id(const char *text, uint8_t ret[16])
{
	if (strlen(text) != 32)
		return -ENOENT;
	for (int i = 0; i < 16; i++) {
		int hi = hex_digit(text[2 * i]), lo = hex_digit(text[2 * i + 1]);

		if (hi < 0 || lo < 0)
			return -ENOENT;
		ret[i] = (uint8_t)(hi << 4 | lo);
	}
	return 0;
}

/*
 * The newest image of the series called @name, of @len bytes; @name NULL: of the only series that the store has. What
 * is listed could be opened, so it is complete as far as anybody knows who has not read all of it.
 */
static int find_latest(struct fs *fs, const char *name, size_t len, uint32_t *ret_slot)
{
	char only[NAME_MAX + 1];
	uint64_t newest = 0, sequence;
	struct slot *slot;
	size_t own;

	for (uint32_t i = 0; slots_next(fs->slots, i, true, &slot) == 0; slot_put(slot)) {
		const char *file = slot_info(slot)->file;

		i = slot_number(slot) + 1;
		if (!series_parse(file, &own, &sequence))
			continue;
		if (!name) {
			memcpy(only, file, own);
			name = only;
			len = own;
		} else if (own != len || memcmp(file, name, own) != 0) {
			if (name != only)
				continue;
			slot_put(slot);
			return -ENOENT;
		}
		if (sequence > newest) {
			newest = sequence;
			*ret_slot = slot_number(slot);
		}
	}
	return newest ? 0 : -ENOENT;
}

static const char latest[] = "latest";

/* NAME-latest and latest, as the store itself has them */
static int lookup_link(struct fs *fs, const char *name, struct node *ret)
{
	size_t len = strlen(name), tail = sizeof(latest);
	struct node node = { .kind = NODE_LINK, .number = LINK_STORE };
	int err;

	if (!strcmp(name, latest)) {
		err = find_latest(fs, NULL, 0, &node.slot);
	} else {
		if (len <= tail || name[len - tail] != '-' || strcmp(name + len - tail + 1, latest) != 0)
			return -ENOENT;
		node.number = LINK_SERIES;
		err = find_latest(fs, name, len - tail, &node.slot);
	}
	if (!err)
		*ret = node;
	return err;
}

static int lookup_meta(struct fs *fs, const struct node *dir, const char *name, struct node *ret)
{
	_cleanup_slot_ struct slot *slot = NULL;
	uint8_t id[16];
	int err = -ENOENT;

	switch (dir->number) {
	case META_ROOT:
		if (!strcmp(name, ".thawfs")) {
			*ret = (struct node){ .kind = NODE_META, .number = META_HIDDEN };
			return 0;
		}
		err = slots_find_name(fs->slots, name, &slot);
		if (err == -ENOENT)
			return lookup_link(fs, name, ret);
		break;
	case META_HIDDEN:
		for (uint32_t i = 0; i < META_NUMBERS; i++)
			if (meta_names[i] && !strcmp(name, meta_names[i])) {
				*ret = (struct node){ .kind = NODE_META, .number = i };
				return 0;
			}
		return -ENOENT;
	case META_BY_ID:
		err = parse_id(name, id);
		if (!err)
			err = slots_find_id(fs->slots, id, &slot);
		break;
	default:
		return -ENOTDIR;
	}
	if (!err)
		*ret = (struct node){ .slot = slot_number(slot),
				      .kind = NODE_MEMBER,
				      .number = IMAGE_ROOT,
				      .by_id = dir->number == META_BY_ID };
	return err;
}

static int lookup_member(struct fs *fs, struct image *img, const struct node *dir, const char *name, struct node *ret)
{
	struct image_inode inode;
	uint32_t ino;
	int err = image_lookup(img, dir->number, name, strlen(name), &ino);

	if (err == -ENOENT && dir->number == IMAGE_ROOT) {
		if (!strcmp(name, ".thaw")) {
			*ret = (struct node){ dir->slot, NODE_THAW, dir->by_id, THAW_DIR };
			return 0;
		}
		if (!strcmp(name, ".thawfs") && is_mount_root(fs, dir)) {
			*ret = (struct node){ .kind = NODE_META, .number = META_HIDDEN };
			return 0;
		}
	}
	if (!err)
		err = image_inode(img, ino, &inode);
	if (err)
		return err;
	*ret = (struct node){ dir->slot, NODE_MEMBER, dir->by_id && S_ISDIR(inode.mode), ino };
	return 0;
}

static int lookup_thaw(const struct node *dir, const char *name, struct node *ret)
{
	if (dir->number != THAW_DIR)
		return -ENOTDIR;
	if (!strcmp(name, "info.json"))
		*ret = (struct node){ dir->slot, NODE_THAW, false, THAW_INFO };
	else if (!strcmp(name, "mem"))
		*ret = (struct node){ dir->slot, NODE_MEM, dir->by_id, VIEW_ROOT };
	else if (!strcmp(name, "maps"))
		*ret = (struct node){ dir->slot, NODE_MAPS, dir->by_id, VIEW_ROOT };
	else
		return -ENOENT;
	return 0;
}

static int lookup_view(struct slot *slot, const struct node *dir, const char *name, struct node *ret)
{
	struct views *views;
	struct view_node view;
	uint32_t number;
	int err = slot_views(slot, &views);

	if (!err)
		err = views_node(views, dir->number, &view);
	if (!err && !view.is_dir)
		err = -ENOTDIR;
	if (!err)
		err = views_lookup(views, dir->number, name, strlen(name), &number);
	if (!err)
		err = views_node(views, number, &view);
	if (!err)
		*ret = (struct node){ dir->slot, dir->kind, dir->by_id && view.is_dir, number };
	return err;
}

int show_lookup(struct fs *fs, const struct node *dir, const char *name, struct node *ret)
{
	_cleanup_slot_ struct slot *slot = NULL;
	struct image *img;
	int err;

	if (dir->kind == NODE_META)
		return lookup_meta(fs, dir, name, ret);
	err = slots_get(fs->slots, dir->slot, &slot);
	if (err)
		return err;
	if (dir->kind == NODE_THAW)
		return lookup_thaw(dir, name, ret);
	if (dir->kind != NODE_MEMBER)
		return lookup_view(slot, dir, name, ret);
	err = slot_image(slot, &img);
	if (!err)
		err = lookup_member(fs, img, dir, name, ret);
	/* where the image cannot be read, what tells so still can */
	if (err && err != -ENOENT && is_mount_root(fs, dir) && !strcmp(name, ".thawfs")) {
		*ret = (struct node){ .kind = NODE_META, .number = META_HIDDEN };
		err = 0;
	}
	return err;
}

/* -- attributes ------------------------------------------------------------------------------- */

static blkcnt_t blocks(uint64_t bytes)
{
	/* in whole pages, as a sparse copy would take */
	return (blkcnt_t)(min_u64(bytes, INT64_MAX - 4096) + 4095) / 4096 * 8;
}

static void inode_stat(const struct image_inode *inode, struct stat *st)
{
	st->st_mode = inode->mode;
	/* 1 for a directory says "not counted", so that find looks into it */
	st->st_nlink = S_ISDIR(inode->mode) ? 1 : inode->nlink;
	st->st_uid = inode->uid;
	st->st_gid = inode->gid;
	st->st_size = S_ISDIR(inode->mode) ? 4096 : (off_t)inode->size;
	st->st_rdev = makedev(inode->rdev_major, inode->rdev_minor);
	st->st_mtim = (struct timespec){ .tv_sec = inode->mtime_sec, .tv_nsec = inode->mtime_nsec };
	st->st_atim = st->st_ctim = st->st_mtim;
	if (S_ISREG(inode->mode))
		st->st_blocks = blocks(inode->size - min_u64(inode->hole_bytes, inode->size));
}

static void meta_stat(const struct fs *fs, const struct node *node, struct stat *st)
{
	st->st_mode = node->number <= META_BY_ID ? S_IFDIR | 0555 : S_IFREG | 0444;
	st->st_nlink = 1;
	st->st_uid = geteuid();
	st->st_gid = getegid();
	st->st_size = node->number <= META_BY_ID ? 4096 : 0;
	st->st_mtim.tv_sec = (time_t)stats_get(&fs->stats->start_s);
	st->st_atim = st->st_ctim = st->st_mtim;
}

/* owner, times and at most the read permissions of @from, for a file or directory that stands beside it */
static int derived_stat(struct image *img, uint32_t from, bool is_dir, struct stat *st)
{
	struct image_inode inode;
	int err = image_inode(img, from, &inode);

	if (err)
		return err;
	inode_stat(&inode, st);
	st->st_nlink = 1;
	st->st_rdev = 0;
	if (is_dir)
		st->st_mode = S_IFDIR | (inode.mode & 0555) | 0500;
	else
		st->st_mode = S_IFREG | (inode.mode & 0444) | 0400;
	return 0;
}

static void link_stat(const struct fs *fs, const struct slot *slot, struct stat *st)
{
	const struct node root = { .kind = NODE_META, .number = META_ROOT };

	meta_stat(fs, &root, st);
	st->st_mode = S_IFLNK | 0777;
	st->st_size = (off_t)strlen(slot_info(slot)->name);
}

static int text_stat(struct fs *fs, const struct node *node, struct stat *st)
{
	struct text *text;
	int err = show_text(fs, node, &text);

	if (err)
		return err;
	st->st_size = (off_t)text->len;
	st->st_blocks = blocks(text->len);
	text_put(text);
	return 0;
}

static int thaw_stat(struct fs *fs, const struct node *node, struct image *img, struct stat *st)
{
	int err = derived_stat(img, IMAGE_ROOT, node->number == THAW_DIR, st);

	return err || node->number == THAW_DIR ? err : text_stat(fs, node, st);
}

static int view_stat(struct fs *fs, const struct node *node, struct slot *slot, struct stat *st)
{
	struct image *img;
	struct views *views;
	struct view_node view;
	struct view_size size;
	struct image_space space;
	int err = slot_image(slot, &img);

	if (!err)
		err = slot_views(slot, &views);
	if (!err)
		err = views_node(views, node->number, &view);
	if (err)
		return err;
	if (view.is_dir)
		return derived_stat(img, IMAGE_ROOT, true, st);
	err = image_space(img, view.space, &space);
	if (!err)
		err = derived_stat(img, space.ino, false, st);
	if (err || node->kind == NODE_MAPS)
		return err ? err : text_stat(fs, node, st);
	err = views_size(views, node->number, &size);
	if (err)
		return err;
	st->st_size = (off_t)size.size;
	st->st_blocks = blocks(size.data_bytes);
	return 0;
}

static int member_stat(const struct node *node, struct image *img, struct stat *st)
{
	struct image_inode inode;
	int err = image_inode(img, node->number, &inode);

	if (err)
		return err == -ENOENT ? -ESTALE : err;
	inode_stat(&inode, st);
	return 0;
}

static int image_stat(struct fs *fs, const struct node *node, struct stat *st)
{
	_cleanup_slot_ struct slot *slot = NULL;
	struct image *img;
	int err = slots_get(fs->slots, node->slot, &slot);

	if (!err && (node->kind == NODE_MEM || node->kind == NODE_MAPS))
		return view_stat(fs, node, slot, st);
	if (!err && node->kind == NODE_LINK) {
		link_stat(fs, slot, st);
		return 0;
	}
	if (!err)
		err = slot_image(slot, &img);
	if (err)
		return err;
	return node->kind == NODE_THAW ? thaw_stat(fs, node, img, st) : member_stat(node, img, st);
}

int show_attr(struct fs *fs, const struct node *node, struct stat *ret, double *ret_timeout_s)
{
	double timeout_s = node->kind == NODE_META ? 1 : fs->cfg.timeout_s;
	struct stat st = { 0 };
	int err = 0;

	if (node->kind == NODE_META)
		meta_stat(fs, node, &st);
	else
		err = image_stat(fs, node, &st);
	if (err && is_mount_root(fs, node)) {
		/* for us alone, and to be asked for again */
		const struct node root = { .kind = NODE_META, .number = META_ROOT };

		meta_stat(fs, &root, &st);
		st.st_mode = S_IFDIR | 0500;
		timeout_s = 0;
	} else if (err) {
		return err;
	}
	if (fs->cfg.has_uid)
		st.st_uid = fs->cfg.uid;
	if (fs->cfg.has_gid)
		st.st_gid = fs->cfg.gid;
	st.st_ino = show_id(fs, node);
	st.st_blksize = 4096;
	*ret = st;
	*ret_timeout_s = timeout_s;
	return 0;
}

/* -- directories ------------------------------------------------------------------------------ */

#define FIRST            2u /* cursor of the first entry after "." and ".." */
#define ENTRIES_PER_SLOT (1u + LINK_NUMBERS)

static int set_name(struct show_entry *e, const char *name, size_t len)
{
	if (len > NAME_MAX)
		return -EBADMSG;
	memcpy(e->name, name, len);
	e->name[len] = '\0';
	return 0;
}

static int link_entry(const struct slot *slot, enum link_number link, struct show_entry *e)
{
	const char *file = slot_info(slot)->file;
	uint64_t sequence;
	size_t len = 0;

	e->node = (struct node){ slot_number(slot), NODE_LINK, false, link };
	e->mode = S_IFLNK;
	if (link == LINK_STORE)
		return set_name(e, latest, strlen(latest));
	series_parse(file, &len, &sequence);
	snprintf(e->name, sizeof(e->name), "%.*s-%s", (int)len, file, latest);
	return 0;
}

/* is there a link to this image? Unless an image is called as the link would be: looking the name up finds that */
static bool has_link(struct fs *fs, const struct slot *slot, enum link_number link)
{
	_cleanup_slot_ struct slot *image = NULL;
	const char *file = slot_info(slot)->file;
	struct show_entry e;
	uint64_t sequence;
	uint32_t found;
	size_t len;

	return series_parse(file, &len, &sequence) &&
	       find_latest(fs, link == LINK_STORE ? NULL : file, len, &found) == 0 && found == slot_number(slot) &&
	       link_entry(slot, link, &e) == 0 && slots_find_name(fs->slots, e.name, &image) == -ENOENT;
}

static int image_entry(const struct slot *slot, bool by_id, struct show_entry *e)
{
	e->node = (struct node){ slot_number(slot), NODE_MEMBER, by_id, IMAGE_ROOT };
	e->mode = S_IFDIR;
	if (!by_id)
		return set_name(e, slot_info(slot)->name, strlen(slot_info(slot)->name));
	image_id_text(slot_info(slot)->id, e->name);
	return 0;
}

/*
 * Entries of the store's root or of by-id: the cursor counts the slot and what leads to it, so it survives what comes
 * and goes. In the root each image is followed by the links to it.
 */
static int next_image(struct fs *fs, bool by_id, uint64_t *cursor, struct show_entry *e)
{
	for (;;) {
		_cleanup_slot_ struct slot *slot = NULL;
		uint64_t number = (*cursor - FIRST) / ENTRIES_PER_SLOT, part = (*cursor - FIRST) % ENTRIES_PER_SLOT;
		enum link_number link = (enum link_number)(part - 1);
		int err;

		if (number > NODE_MAX_SLOTS)
			return -ENOENT;
		err = slots_next(fs->slots, (uint32_t)number, !by_id, &slot);
		if (err)
			return err;
		/* another one than the cursor counts: that is gone */
		if (slot_number(slot) != number)
			part = 0;
		*cursor = (uint64_t)slot_number(slot) * ENTRIES_PER_SLOT + part + FIRST + 1;
		if (part == 0)
			return image_entry(slot, by_id, e);
		if (!by_id && has_link(fs, slot, link))
			return link_entry(slot, link, e);
	}
}

static int next_meta(struct fs *fs, const struct node *dir, uint64_t *cursor, struct show_entry *e)
{
	if (dir->number == META_ROOT || dir->number == META_BY_ID)
		return next_image(fs, dir->number == META_BY_ID, cursor, e);
	if (dir->number != META_HIDDEN)
		return -ENOTDIR;
	for (uint64_t i = *cursor - FIRST; i < META_NUMBERS; i++)
		if (meta_names[i]) {
			*cursor = i + FIRST + 1;
			e->node = (struct node){ .kind = NODE_META, .number = (uint32_t)i };
			e->mode = i == META_BY_ID ? S_IFDIR : S_IFREG;
			return set_name(e, meta_names[i], strlen(meta_names[i]));
		}
	return -ENOENT;
}

static int next_member(const struct node *dir, struct image *img, uint64_t *cursor, struct show_entry *e)
{
	struct image_dirent found;
	struct image_inode inode;
	int err = image_readdir(img, dir->number, *cursor - FIRST, &found);

	if (!err)
		err = set_name(e, found.name, found.len);
	if (!err)
		err = image_inode(img, found.ino, &inode);
	if (err)
		return err;
	(*cursor)++;
	e->node = (struct node){ dir->slot, NODE_MEMBER, dir->by_id && S_ISDIR(inode.mode), found.ino };
	e->mode = inode.mode;
	return 0;
}

static int next_thaw(const struct node *dir, uint64_t *cursor, struct show_entry *e)
{
	static const char *const names[] = { "info.json", "mem", "maps" };

	if (dir->number != THAW_DIR)
		return -ENOTDIR;
	if (*cursor - FIRST >= ARRAY_SIZE(names))
		return -ENOENT;
	const char *name = names[*cursor - FIRST];
	e->mode = *cursor == FIRST ? S_IFREG : S_IFDIR;
	(*cursor)++;
	set_name(e, name, strlen(name));
	return lookup_thaw(dir, name, &e->node);
}

static int next_view(const struct node *dir, struct slot *slot, uint64_t *cursor, struct show_entry *e)
{
	struct views *views;
	struct view_node view;
	uint32_t number;
	int err = slot_views(slot, &views);

	if (!err)
		err = views_node(views, dir->number, &view);
	if (!err && !view.is_dir)
		err = -ENOTDIR;
	if (!err)
		err = views_child(views, dir->number, *cursor - FIRST, &number);
	if (!err)
		err = views_node(views, number, &view);
	if (!err)
		err = set_name(e, view.name, view.name_len);
	if (err)
		return err;
	(*cursor)++;
	e->node = (struct node){ dir->slot, dir->kind, dir->by_id && view.is_dir, number };
	e->mode = view.is_dir ? S_IFDIR : S_IFREG;
	e->costly = !view.is_dir;
	return 0;
}

static int next_of_image(struct fs *fs, const struct node *dir, uint64_t *cursor, struct show_entry *e)
{
	_cleanup_slot_ struct slot *slot = NULL;
	struct image *img;
	int err = slots_get(fs->slots, dir->slot, &slot);

	if (err)
		return err;
	if (dir->kind == NODE_THAW)
		return next_thaw(dir, cursor, e);
	if (dir->kind != NODE_MEMBER)
		return next_view(dir, slot, cursor, e);
	err = slot_image(slot, &img);
	return err ? err : next_member(dir, img, cursor, e);
}

int show_next(struct fs *fs, const struct node *dir, uint64_t *cursor, struct show_entry *ret)
{
	struct show_entry e = { 0 };
	uint64_t at = *cursor;
	int err;

	if (at < FIRST) {
		strcpy(e.name, at == 0 ? "." : "..");
		e.is_dot = true;
		e.mode = S_IFDIR;
		e.node = *dir;
		at++;
		err = 0;
	} else if (dir->kind == NODE_META) {
		err = next_meta(fs, dir, &at, &e);
	} else {
		err = next_of_image(fs, dir, &at, &e);
	}
	if (err)
		return err;
	*ret = e;
	*cursor = at;
	return 0;
}

/* -- what the kernel may keep ------------------------------------------------------------------ */

bool show_is_fixed(const struct fs *fs, const struct node *dir)
{
	(void)fs;
	return dir->kind != NODE_META || dir->number == META_HIDDEN;
}

double show_name_timeout(const struct fs *fs, const struct node *dir, bool found)
{
	/* a name in the store can go to another image, and a new one come: store.c tells the kernel besides */
	if (!show_is_fixed(fs, dir))
		return found ? 1 : 0;
	return fs->cfg.timeout_s;
}

int show_link(struct fs *fs, const struct node *node, char ret[CONTROL_NAME_MAX])
{
	_cleanup_slot_ struct slot *slot = NULL;
	int err = node->kind == NODE_LINK ? slots_get(fs->slots, node->slot, &slot) : -EINVAL;

	if (!err)
		memcpy(ret, slot_info(slot)->name, CONTROL_NAME_MAX);
	return err;
}

int show_text(struct fs *fs, const struct node *node, struct text **ret)
{
	_cleanup_slot_ struct slot *slot = NULL;
	struct views *views;
	int err = slots_get(fs->slots, node->slot, &slot);

	if (!err)
		err = slot_views(slot, &views);
	if (err)
		return err;
	return node->kind == NODE_MAPS ? views_maps(views, node->number, ret) : views_info(views, ret);
}
