/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "fs/hydrate.h"
#include "fs/meta.h"
#include "fs/prefetch.h"
#include "fs/read.h"
#include "fs/session.h"
#include "fs/show.h"

#define MAX_READAHEAD  (1u << 20)
#define MAX_BACKGROUND 64 /* read-ahead requests under way at once */
#define XATTR_STORED   "user.thaw.stored"

static _Thread_local struct reader *reader;

int ops_thread_begin(struct fs *fs)
{
	return reader_new(fs, &reader);
}

void ops_thread_end(void)
{
	reader_free(reader);
	reader = NULL;
}

static pthread_key_t reader_key;
static pthread_once_t reader_key_once = PTHREAD_ONCE_INIT;

static void free_reader(void *arg)
{
	reader_free(arg);
}

static void make_reader_key(void)
{
	if (pthread_key_create(&reader_key, free_reader))
		log_detail("readers of rings stay until the end");
}

/* a thread that we did not start: what it needs is freed when it ends */
static int begin_ring_thread(struct fs *fs)
{
	int err = ops_thread_begin(fs);

	pthread_once(&reader_key_once, make_reader_key);
	if (!err)
		pthread_setspecific(reader_key, reader);
	return err;
}

static struct fs *fs_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/* the one place where our errors become the kernel's */
static void reply_error(fuse_req_t req, int err)
{
	if (err == -EBADMSG || err == -EPROTONOSUPPORT || err == -ENODATA || err == -EFBIG || err == -EPROTO)
		err = -EIO;
	fuse_reply_err(req, -err);
}

static void put_slot(struct slot **slot)
{
	slot_put(*slot);
}
#define _cleanup_slot_ _cleanup_(put_slot)

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	static const unsigned wanted = FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS |
				       FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_CACHE_SYMLINKS;

	(void)userdata;
	conn->want = conn->capable & wanted;
#ifdef FUSE_CAP_OVER_IO_URING
	/* which the session's options decide */
	conn->want |= conn->capable & FUSE_CAP_OVER_IO_URING;
#endif
	conn->max_readahead = MAX_READAHEAD;
	conn->max_background = MAX_BACKGROUND;
	conn->congestion_threshold = MAX_BACKGROUND * 3 / 4;
	conn->time_gran = 1;
}

/* -- names and attributes ---------------------------------------------------------------------- */

static int fill_entry(struct fs *fs, const struct node *dir, const struct node *node, struct fuse_entry_param *e)
{
	int err = show_attr(fs, node, &e->attr, &e->attr_timeout);

	if (err)
		return err;
	e->ino = show_id(fs, node);
	e->entry_timeout = show_name_timeout(fs, dir, true);
	return 0;
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct fuse_entry_param e = { 0 };
	struct node dir, node;
	int err = show_node(fs, parent, &dir);

	if (!err)
		err = show_lookup(fs, &dir, name, &node);
	if (err == -ENOENT) {
		/* node id 0: the kernel remembers that there is none */
		e.entry_timeout = show_name_timeout(fs, &dir, false);
		fuse_reply_entry(req, &e);
		return;
	}
	if (!err)
		err = fill_entry(fs, &dir, &node, &e);
	if (err)
		reply_error(req, err);
	else
		fuse_reply_entry(req, &e);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	(void)ino;
	(void)nlookup;
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	(void)count;
	(void)forgets;
	fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct node node;
	struct stat st;
	double timeout;
	int err = show_node(fs, ino, &node);

	(void)fi;
	if (!err)
		err = show_attr(fs, &node, &st, &timeout);
	if (err)
		reply_error(req, err);
	else
		fuse_reply_attr(req, &st, timeout);
}

/* a node that must be one of an image's own; @slot is for slot_put() */
static int member_image(struct fs *fs, fuse_ino_t ino, struct node *node, struct slot **slot, struct image **img)
{
	int err = show_node(fs, ino, node);

	if (!err && node->kind != NODE_MEMBER)
		return -EOPNOTSUPP;
	if (!err)
		err = slots_get(fs->slots, node->slot, slot);
	return err ? err : slot_image(*slot, img);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	_cleanup_slot_ struct slot *slot = NULL;
	char target[THAW_TARGET_MAX + 1], name[CONTROL_NAME_MAX];
	struct image *img;
	struct node node;
	const char *text;
	size_t len = 0;
	int err = show_node(fs_of(req), ino, &node);

	if (!err && show_link(fs_of(req), &node, name) == 0) {
		fuse_reply_readlink(req, name);
		return;
	}
	err = member_image(fs_of(req), ino, &node, &slot, &img);

	if (!err)
		err = image_readlink(img, node.number, &text, &len);
	if (!err && len > THAW_TARGET_MAX)
		err = -EBADMSG;
	if (err) {
		reply_error(req, err == -EOPNOTSUPP ? -EINVAL : err);
		return;
	}
	memcpy(target, text, len);
	target[len] = '\0';
	fuse_reply_readlink(req, target);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct fs *fs = fs_of(req);
	struct statvfs st = { .f_bsize = 4096, .f_frsize = 4096, .f_namemax = THAW_NAME_MAX };
	struct slot *slot;

	(void)ino;
	/* what the images take where they are stored: nothing is free on a read-only mount */
	for (uint32_t i = 0; slots_next(fs->slots, i, true, &slot) == 0; slot_put(slot)) {
		struct image *img;

		i = slot_number(slot) + 1;
		st.f_blocks += (slot_info(slot)->size + 4095) / 4096;
		/* the count of inodes of a whole store would open all its images */
		if (!fs->cfg.store && slot_image(slot, &img) == 0)
			st.f_files += image_info(img)->n_inodes;
	}
	fuse_reply_statfs(req, &st);
}

/* -- xattrs ------------------------------------------------------------------------------------ */

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* the chunks of this image that a file uses, sorted; each once. Chunks of bases are not stored here */
static int own_chunks(struct image *img, uint32_t ino, uint32_t **ret, size_t *ret_n)
{
	_cleanup_free_ uint32_t *list = NULL;
	size_t n = 0, room = 0, distinct = 0;
	struct image_run run;
	int err;

	for (uint64_t at = 0; !(err = image_map(img, ino, at, &run)); at = run.off + run.len) {
		if (run.kind != RUN_DATA || run.img != img || (n && list[n - 1] == run.chunk))
			continue;
		if (n == room) {
			room = room ? room * 2 : 256;
			uint32_t *p = realloc(list, room * sizeof(*p));
			if (!p)
				return -ENOMEM;
			list = p;
		}
		list[n++] = run.chunk;
	}
	if (err != -ENXIO)
		return err;
	if (n)
		qsort(list, n, sizeof(*list), by_number);
	for (size_t i = 0; i < n; i++)
		if (i == 0 || list[i] != list[distinct - 1])
			list[distinct++] = list[i];
	*ret = steal_ptr(&list);
	*ret_n = distinct;
	return 0;
}

static int stored_bytes(struct image *img, uint32_t ino, uint64_t *ret)
{
	_cleanup_free_ uint32_t *list = NULL;
	uint64_t sum = 0;
	size_t n;
	int err = own_chunks(img, ino, &list, &n);

	for (size_t i = 0; !err && i < n; i++) {
		struct image_chunk chunk;

		err = image_chunk(img, list[i], &chunk);
		if (!err && chunk.base == 0)
			sum += chunk.stored_len;
	}
	if (!err)
		*ret = sum;
	return err;
}

static int find_xattr(struct image *img, uint32_t ino, const char *name, struct image_xattr *ret)
{
	struct image_inode inode;
	int err = image_inode(img, ino, &inode);

	for (uint32_t i = 0; !err && i < inode.n_xattrs; i++) {
		err = image_xattr(img, &inode, i, ret);
		if (!err && ret->name_len == strlen(name) && !memcmp(ret->name, name, ret->name_len))
			return 0;
	}
	return err ? err : -ENODATA;
}

static void reply_bytes(fuse_req_t req, const void *data, size_t len, size_t room)
{
	if (room == 0)
		fuse_reply_xattr(req, len);
	else if (len > room)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, data, len);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	_cleanup_slot_ struct slot *slot = NULL;
	struct image_xattr x = { 0 };
	struct image_inode inode;
	struct image *img = NULL;
	struct node node;
	char text[24];
	uint64_t stored = 0;
	int err = member_image(fs_of(req), ino, &node, &slot, &img);

	if (!err)
		err = find_xattr(img, node.number, name, &x);
	if (!err) {
		reply_bytes(req, x.value, x.value_len, size);
		return;
	}
	if (err == -ENODATA && img && !strcmp(name, XATTR_STORED) && !image_inode(img, node.number, &inode) &&
	    S_ISREG(inode.mode)) {
		err = stored_bytes(img, node.number, &stored);
		if (!err) {
			snprintf(text, sizeof(text), "%llu", (unsigned long long)stored);
			reply_bytes(req, text, strlen(text), size);
			return;
		}
	}
	/* not through reply_error(): here ENODATA says that there is no such attribute */
	if (err == -ENODATA || err == -EOPNOTSUPP)
		fuse_reply_err(req, ENODATA);
	else
		reply_error(req, err);
}

static int list_xattrs(struct image *img, uint32_t ino, char **ret, size_t *ret_len)
{
	_cleanup_free_ char *list = NULL;
	struct image_inode inode;
	struct image_xattr x;
	size_t len = 0, room = 0;
	int err = image_inode(img, ino, &inode);

	for (uint32_t i = 0; !err && i < inode.n_xattrs; i++) {
		err = image_xattr(img, &inode, i, &x);
		if (err || len + x.name_len + 1 > XATTR_LIST_MAX)
			break;
		if (len + x.name_len + 1 > room) {
			char *p = realloc(list, room = (len + x.name_len + 1) * 2);

			if (!p)
				return -ENOMEM;
			list = p;
		}
		memcpy(list + len, x.name, x.name_len);
		len += x.name_len;
		list[len++] = '\0';
	}
	if (err)
		return err;
	*ret = steal_ptr(&list);
	*ret_len = len;
	return 0;
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	_cleanup_slot_ struct slot *slot = NULL;
	_cleanup_free_ char *list = NULL;
	struct image *img;
	struct node node;
	size_t len = 0;
	int err = member_image(fs_of(req), ino, &node, &slot, &img);

	if (!err)
		err = list_xattrs(img, node.number, &list, &len);
	if (err && err != -EOPNOTSUPP)
		reply_error(req, err);
	else
		reply_bytes(req, list, len, size);
}

/* -- directories ------------------------------------------------------------------------------- */

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct node node;
	int err = show_node(fs, ino, &node);

	if (err) {
		reply_error(req, err);
		return;
	}
	fi->fh = 0;
	fi->keep_cache = fi->cache_readdir = show_is_fixed(fs, &node);
	meta_opened(fs, &node, +1);
	if (fuse_reply_open(req, fi))
		meta_opened(fs, &node, -1); /* nobody got it, so no release comes */
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct node node;
	int err = show_node(fs, ino, &node);

	(void)fi;
	if (fuse_reply_err(req, 0) == 0 && !err)
		meta_opened(fs, &node, -1);
}

static size_t add_plain(fuse_req_t req, char *buf, size_t room, const struct show_entry *e, uint64_t next)
{
	struct stat st = { .st_ino = show_id(fs_of(req), &e->node), .st_mode = e->mode };

	return fuse_add_direntry(req, buf, room, e->name, &st, (off_t)next);
}

static size_t add_plus(fuse_req_t req, char *buf, size_t room, const struct node *dir, const struct show_entry *e,
		       uint64_t next)
{
	struct fs *fs = fs_of(req);
	struct fuse_entry_param p = { 0 };

	/* node id 0: the kernel asks for the attributes when it needs them */
	if (e->is_dot || e->costly || fill_entry(fs, dir, &e->node, &p)) {
		memset(&p, 0, sizeof(p));
		p.attr.st_ino = show_id(fs, &e->node);
		p.attr.st_mode = e->mode;
	}
	return fuse_add_direntry_plus(req, buf, room, e->name, &p, (off_t)next);
}

static void read_dir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
	_cleanup_free_ char *buf = malloc(size);
	struct fs *fs = fs_of(req);
	uint64_t cursor = (uint64_t)off;
	struct show_entry e;
	struct node dir;
	size_t len = 0;
	int err = buf ? show_node(fs, ino, &dir) : -ENOMEM;

	while (!err) {
		size_t n;

		err = show_next(fs, &dir, &cursor, &e);
		if (err)
			break;
		if (plus)
			n = add_plus(req, buf + len, size - len, &dir, &e, cursor);
		else
			n = add_plain(req, buf + len, size - len, &e, cursor);
		if (n > size - len)
			break;
		len += n;
	}
	/* what was found before an error goes out first; the next call begins with the error */
	if (err && err != -ENOENT && len == 0)
		reply_error(req, err);
	else
		fuse_reply_buf(req, buf, len);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	(void)fi;
	read_dir(req, ino, size, off, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	(void)fi;
	read_dir(req, ino, size, off, true);
}

/* -- files ------------------------------------------------------------------------------------- */

/*
 * The handle of a member or view says how it was opened, to us and to a worker after us: the low half is the number of
 * its backing file, the high half what prefetch_opened() said.
 */
static bool has_chunks(const struct node *node)
{
	return node->kind == NODE_MEMBER || node->kind == NODE_MEM;
}

static uint32_t handle_backing(const struct node *node, uint64_t fh)
{
	return has_chunks(node) ? (uint32_t)fh : 0;
}

static uint32_t handle_prefetch(const struct node *node, uint64_t fh)
{
	return has_chunks(node) ? (uint32_t)(fh >> 32) : 0;
}

static void refuse(fuse_req_t req, const char *what)
{
	static _Atomic uint64_t said;
	uint64_t now = stats_now_ns(), last = said;

	if (now - last > 10000000000u || !last)
		if (atomic_compare_exchange_strong(&said, &last, now))
			log_note("refused to %s: images are read-only (criu restore: without --auto-dedup, with -W for "
				 "its own files; dmtcp_restart: with --ckptdir elsewhere)",
				 what);
	fuse_reply_err(req, EROFS);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct node node;
	uint32_t backing, prefetch = 0;
	int err = show_node(fs, ino, &node);

	if (!err && ((fi->flags & O_ACCMODE) != O_RDONLY || fi->flags & O_TRUNC)) {
		refuse(req, "open a file for writing");
		return;
	}
	fi->fh = 0;
	if (!err && node.kind == NODE_META)
		err = meta_open(fs, &node, &fi->fh);
	if (err) {
		reply_error(req, err);
		return;
	}
	fi->direct_io = node.kind == NODE_META;
	meta_opened(fs, &node, +1);
	backing = hydrate_opened(fs->hydrator, &node);
	if (!backing && has_chunks(&node) && !(fi->flags & O_DIRECT) && !hydrate_has(fs->hydrator, &node))
		prefetch = prefetch_opened(fs->prefetcher, &node);
	if (has_chunks(&node))
		fi->fh = (uint64_t)prefetch << 32 | backing;
	/* the kernel refuses keep_cache where there is no cache */
	fi->keep_cache = !fi->direct_io && !backing;
	session_pass_open(backing);
	err = fuse_reply_open(req, fi);
	session_pass_open(0);
	if (err) {
		meta_opened(fs, &node, -1);
		hydrate_closed(fs->hydrator, &node, backing);
		prefetch_closed(fs->prefetcher, &node, prefetch);
		meta_close(fi->fh);
	}
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct node node;
	uint64_t fh = fi->fh;
	int err = show_node(fs, ino, &node);

	/* answered first: killed in between, a file counts as open for ever, which is the safe side */
	if (fuse_reply_err(req, 0) || err)
		return;
	meta_opened(fs, &node, -1);
	hydrate_closed(fs->hydrator, &node, handle_backing(&node, fh));
	prefetch_closed(fs->prefetcher, &node, handle_prefetch(&node, fh));
	meta_close(fh);
}

static void reply_text(fuse_req_t req, struct text *text, size_t size, uint64_t off)
{
	size_t len = off < text->len ? min_u64(size, text->len - off) : 0;

	fuse_reply_buf(req, text->data + (len ? off : 0), len);
	text_put(text);
}

static int read_file(fuse_req_t req, const struct node *node, size_t size, uint64_t off, bool *ret_had_data,
		     uint64_t *ret_push_at)
{
	_cleanup_slot_ struct slot *slot = NULL;
	struct fs *fs = fs_of(req);
	struct iovec iov[READ_MAX_IOV];
	struct read_file file;
	int n = slots_get(fs->slots, node->slot, &slot);

	if (!n)
		n = read_file_init(slot, node, &file);
	if (n)
		return n;
	size = off < file.size ? min_u64(size, file.size - off) : 0;
	if (size == 0) {
		fuse_reply_buf(req, NULL, 0);
		return 0;
	}
	if (!reader)
		n = begin_ring_thread(fs);
	if (n)
		return n;
	n = reader_gather(reader, &file, off, size, iov);
	if (n >= 0) {
		fuse_reply_iov(req, iov, n);
		stats_add(&fs->stats->read_bytes, size);
	}
	*ret_had_data = reader_had_data(reader);
	*ret_push_at = reader_push_at(reader);
	reader_release(reader);
	return n < 0 ? n : 0;
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct node node;
	struct text *text;
	int err = show_node(fs, ino, &node);

	if (!err && has_chunks(&node)) {
		uint64_t push_at = READ_NO_PUSH;
		bool had_data = false;

		prefetch_read_begins(fs->prefetcher);
		err = read_file(req, &node, size, (uint64_t)off, &had_data, &push_at);
		prefetch_read_ends(fs->prefetcher, &node, handle_prefetch(&node, fi->fh), had_data);
		if (push_at != READ_NO_PUSH && !(fi->flags & O_DIRECT))
			prefetch_push(fs->prefetcher, &node, push_at);
		if (!err)
			return;
	} else if (!err) {
		err = node.kind == NODE_META ? meta_text(fs, &node, fi->fh, &text) : show_text(fs, &node, &text);
		if (!err) {
			reply_text(req, text, size, (uint64_t)off);
			return;
		}
	}
	reply_error(req, err);
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
	_cleanup_slot_ struct slot *slot = NULL;
	struct fs *fs = fs_of(req);
	struct read_file file;
	struct node node;
	struct text *text;
	uint64_t found;
	int err = show_node(fs, ino, &node);

	(void)fi;
	if (!err && whence != SEEK_DATA && whence != SEEK_HOLE)
		err = -EINVAL;
	if (!err && has_chunks(&node)) {
		err = slots_get(fs->slots, node.slot, &slot);
		if (!err)
			err = read_file_init(slot, &node, &file);
		if (!err)
			err = read_seek(&file, (uint64_t)off, whence == SEEK_HOLE, &found);
	} else if (!err && node.kind == NODE_META) {
		err = -EINVAL;
	} else if (!err) {
		/* a text is all data */
		err = show_text(fs, &node, &text);
		if (!err) {
			found = whence == SEEK_HOLE ? text->len : (uint64_t)off;
			err = (uint64_t)off < text->len ? 0 : -ENXIO;
			text_put(text);
		}
	}
	if (err)
		reply_error(req, err);
	else
		fuse_reply_lseek(req, (off_t)found);
}

/* -- everything that would write ---------------------------------------------------------------- */

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
	(void)ino;
	(void)attr;
	(void)to_set;
	(void)fi;
	refuse(req, "change attributes");
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	(void)parent;
	(void)name;
	(void)mode;
	(void)rdev;
	refuse(req, "make a file");
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	(void)parent;
	(void)name;
	(void)mode;
	refuse(req, "make a directory");
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	(void)parent;
	(void)name;
	refuse(req, "remove a name");
}

static void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
	(void)link;
	(void)parent;
	(void)name;
	refuse(req, "make a link");
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent, const char *newname,
		      unsigned int flags)
{
	(void)parent;
	(void)name;
	(void)newparent;
	(void)newname;
	(void)flags;
	refuse(req, "rename");
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname)
{
	(void)ino;
	(void)newparent;
	(void)newname;
	refuse(req, "make a link");
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	(void)parent;
	(void)name;
	(void)mode;
	(void)fi;
	refuse(req, "make a file");
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off, struct fuse_file_info *fi)
{
	(void)ino;
	(void)buf;
	(void)size;
	(void)off;
	(void)fi;
	refuse(req, "write");
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags)
{
	(void)ino;
	(void)name;
	(void)value;
	(void)size;
	(void)flags;
	refuse(req, "set an attribute");
}

static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	(void)ino;
	(void)name;
	refuse(req, "remove an attribute");
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len, struct fuse_file_info *fi)
{
	(void)ino;
	(void)mode;
	(void)off;
	(void)len;
	(void)fi;
	refuse(req, "punch a hole");
}

/* -- over io_uring ------------------------------------------------------------------------------- */

#define COUNTED(name, kind, params, ...)               \
	static void ring_##name params                 \
	{                                              \
		struct fs *fs = fs_of(req);            \
		uint64_t start = stats_now_ns();       \
                                                       \
		op_##name(req, __VA_ARGS__);           \
		stats_request(fs->stats, kind, start); \
	}

COUNTED(lookup, STATS_LOOKUP, (fuse_req_t req, fuse_ino_t parent, const char *name), parent, name)
COUNTED(getattr, STATS_GETATTR, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi), ino, fi)
COUNTED(readlink, STATS_READLINK, (fuse_req_t req, fuse_ino_t ino), ino)
COUNTED(statfs, STATS_STATFS, (fuse_req_t req, fuse_ino_t ino), ino)
COUNTED(getxattr, STATS_XATTR, (fuse_req_t req, fuse_ino_t ino, const char *name, size_t size), ino, name, size)
COUNTED(listxattr, STATS_XATTR, (fuse_req_t req, fuse_ino_t ino, size_t size), ino, size)
COUNTED(opendir, STATS_OPEN, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi), ino, fi)
COUNTED(readdir, STATS_READDIR, (fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi),
	ino, size, off, fi)
COUNTED(readdirplus, STATS_READDIR, (fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi),
	ino, size, off, fi)
COUNTED(releasedir, STATS_RELEASE, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi), ino, fi)
COUNTED(open, STATS_OPEN, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi), ino, fi)
COUNTED(read, STATS_READ, (fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi), ino,
	size, off, fi)
COUNTED(release, STATS_RELEASE, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi), ino, fi)
COUNTED(lseek, STATS_LSEEK, (fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi), ino,
	off, whence, fi)

#define REFUSALS                                                                                              \
	.setattr = op_setattr, .mknod = op_mknod, .mkdir = op_mkdir, .unlink = op_unlink, .rmdir = op_unlink, \
	.symlink = op_symlink, .rename = op_rename, .link = op_link, .create = op_create, .write = op_write,  \
	.setxattr = op_setxattr, .removexattr = op_removexattr, .fallocate = op_fallocate

const struct fuse_lowlevel_ops fs_ring_ops = {
	.init = op_init,
	.lookup = ring_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = ring_getattr,
	.readlink = ring_readlink,
	.statfs = ring_statfs,
	.getxattr = ring_getxattr,
	.listxattr = ring_listxattr,
	.opendir = ring_opendir,
	.readdir = ring_readdir,
	.readdirplus = ring_readdirplus,
	.releasedir = ring_releasedir,
	.open = ring_open,
	.read = ring_read,
	.release = ring_release,
	.lseek = ring_lseek,
	REFUSALS,
};

/* no flush: the kernel is told once that there is none and asks no more */
const struct fuse_lowlevel_ops fs_ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.readlink = op_readlink,
	.statfs = op_statfs,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_releasedir,
	.open = op_open,
	.read = op_read,
	.release = op_release,
	.lseek = op_lseek,
	REFUSALS,
};
