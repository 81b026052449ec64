/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A DMTCP installation in which our restarter stands in for mtcp_restart.
 *
 * dmtcp_restart runs the mtcp_restart of the tree that its own executable lies in. The user's installation is not
 * touched: a tree of links with a copy of dmtcp_restart and the restarter is made in the user's cache directory. It
 * stays there, as restored programs look for DMTCP's libraries in it when they execute others, and is used again as
 * long as both executables are the same.
 */
#ifndef THAW_CLI_DMTCP_TREE_H
#define THAW_CLI_DMTCP_TREE_H

#include <limits.h>

/*
 * dmtcp_tree - find DMTCP and the tree for it, which is made if it is not there
 * @prefix:     where DMTCP is: its prefix, its bin directory, or NULL to look for dmtcp_restart in $PATH
 * @restarter:  our mtcp_restart
 * @ret_path:   the tree's dmtcp_restart
 * Return: 0; -ENOENT (no DMTCP), -errno; logged
 */
int dmtcp_tree(const char *prefix, const char *restarter, char ret_path[PATH_MAX]);

#endif
