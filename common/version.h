/* SPDX-License-Identifier: Apache-2.0 */
#ifndef THAW_COMMON_VERSION_H
#define THAW_COMMON_VERSION_H

#define THAWFS_VERSION "0.1.0"

#endif
