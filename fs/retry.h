/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A source that tries again: reads of the one inside that fail for a reason that may pass are repeated after short
 * pauses, so that one failure of a disk or a network is nobody's error, be it in a chunk or in the index. It decides
 * nothing about damage, which is found above it.
 */
#ifndef THAW_FS_RETRY_H
#define THAW_FS_RETRY_H

#include "fs/stats.h"
#include "imgfmt/source.h"

/*
 * retry_source - put @inner into a source that tries again
 * @inner:  the new source closes it, also on failure
 * @stats:  where repetitions are counted; NULL: nowhere. Lives longer than the source
 * Return: 0, -ENOMEM. Threads may share the source as they may share @inner.
 */
int retry_source(struct source *inner, struct stats *stats, struct source **ret);

#endif
