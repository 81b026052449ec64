/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/verify_output.h"

#include <errno.h>
#include <unistd.h>

#include "common/log.h"
#include "imgfmt/verify.h"

static void report_damage(void *ctx, const struct verify_damage *d)
{
	const struct output *out = ctx;

	log_error("verification of '%s' failed at offset %llu: %s", out->name, (unsigned long long)d->stored_off,
		  d->what);
}

int verify_output(const struct output *out, const char *const *base_path, unsigned threads)
{
	const struct image_opts iopts = { .base_path = base_path };
	const struct verify_opts vopts = { .threads = threads, .damage = report_damage, .ctx = (void *)(uintptr_t)out };
	struct verify_result result = { 0 };
	struct source *src = NULL;
	struct image *img = NULL;
	int fd = dup(out->fd), r;

	r = fd < 0 ? -errno : source_open_fd(fd, out->name, &src);
	if (!r)
		r = image_open_source(src, &iopts, &img);
	if (!r)
		r = image_check(img, &vopts, &result);
	image_close(img);
	/* it is the output that failed; there is no damaged image, for this one will not be published */
	if (r == -EBADMSG || (!r && (result.n_damaged || result.n_index_errors))) {
		log_error("cannot write '%s': what was written does not read back", out->name);
		r = -EIO;
	}
	return r;
}
