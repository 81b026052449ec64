/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/output_spare.h"

#include <errno.h>
#include <sys/stat.h>

#include "common/log.h"

struct spare {
	struct output *out;
	const struct image *replaceable;
};

static int look_at(void *ctx, struct image *img)
{
	const struct spare *s = ctx;
	int fd = source_fd(image_source(img));
	enum output_place place;
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		return 0;
	place = output_place(s->out, image_path(img), &st);
	if (place == OUTPUT_ELSEWHERE || (place == OUTPUT_FINAL && img == s->replaceable))
		return 0;
	if (img == s->replaceable)
		log_error("cannot write '%s': that would go by way of '%s', which is to be read", s->out->name,
			  image_path(img));
	else
		log_error("cannot use base '%s': the image would take its place", image_path(img));
	return -EINVAL;
}

int output_spare(struct output *out, struct image *img, bool but_itself)
{
	struct spare s = { .out = out, .replaceable = but_itself ? img : NULL };

	return image_each_needed(img, look_at, &s);
}
