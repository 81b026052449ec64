# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion of thawfs for bash: verbs and options as the program itself lists them, images, and paths inside images.

# options of a verb, from its help text
_thawfs_options() {
	thawfs help "$1" 2>/dev/null | sed -n 's/^ *\(-.*\)/\1/p' |
		grep -oE -- '(^|[ ,])--?[a-zA-Z][a-z-]*' | tr -d ' ,' | sort -u
}

# _thawfs_members IMAGE PREFIX: paths that continue the prefix by one part; names that would need quoting are left out
_thawfs_members() {
	local dir=""
	[[ $2 == */* ]] && dir=${2%/*}/
	thawfs ls -l "$1" "${dir%/}" 2>/dev/null | while IFS= read -r line; do
		local name=${line#* [0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9] }
		[[ $line == l* ]] && name=${name% -> *}
		[[ $name == *[\\\ \'\"]* ]] && continue
		[[ $line == d* ]] && name+=/
		printf '%s\n' "$dir$name"
	done
}

_thawfs_words() {
	local IFS=$'\n'
	mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2")
}

# files whose name ends in .thaw, directories (mounts, or the way to files)
_thawfs_images() {
	mapfile -t COMPREPLY < <(
		compgen -f -X '!*.thaw' -- "$1"
		compgen -d -S / -- "$1"
	)
	compopt -o nospace -o filenames 2>/dev/null
}

_thawfs_files() {
	mapfile -t COMPREPLY < <(compgen -f -- "$1")
	compopt -o filenames 2>/dev/null
}

# the operands that stand before the word at hand, in the array operands
_thawfs_operands() {
	local i
	operands=()
	for ((i = 2; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		-o | -z | -j | -m | --output | --level | --codec | --chunk | --base | --base-path | --threads | --member | --progress | --keep | --name | --timeout | --rate | --job | --rank | --ranks | --step | --wait)
			((i++))
			;;
		-*) ;;
		*) operands+=("${COMP_WORDS[i]}") ;;
		esac
	done
}

_thawfs() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb=${COMP_WORDS[1]} operands
	COMPREPLY=()
	if [ "$COMP_CWORD" -eq 1 ]; then
		_thawfs_words "$(thawfs help | sed -n 's/^  \([a-z-]*\)  .*/\1/p')" "$cur"
		return
	fi
	case $prev in
	--progress) _thawfs_words $'auto\nnone\nbar' "$cur" && return ;;
	--mode) _thawfs_words $'auto\neager\nlazy\nuffd' "$cur" && return ;;
	--codec) _thawfs_words $'zstd\nlz4\nraw' "$cur" && return ;;
	--chunk) _thawfs_words $'64K\n128K\n256K\n512K\n1M\n2M\n4M' "$cur" && return ;;
	--base) _thawfs_images "$cur" && return ;;
	--base-path) mapfile -t COMPREPLY < <(compgen -d -- "$cur") && return ;;
	-z | -j | --level | --threads | --keep | --name | --timeout | --rate | --job | --rank | --ranks | --step | --wait) return ;;
	esac
	if [[ $cur == -* ]]; then
		_thawfs_words "$(_thawfs_options "$verb")" "$cur"
		return
	fi
	_thawfs_operands
	case $verb in
	help) _thawfs_words "$(thawfs help | sed -n 's/^  \([a-z-]*\)  .*/\1/p')" "$cur" ;;
	ls | du)
		if [ ${#operands[@]} -eq 0 ]; then
			_thawfs_images "$cur"
		else
			compopt -o nospace 2>/dev/null
			_thawfs_words "$(_thawfs_members "${operands[0]}" "$cur")" "$cur"
		fi
		;;
	info | verify | diff | mount) _thawfs_images "$cur" ;;
	snap | series | prune | clean)
		mapfile -t COMPREPLY < <(compgen -d -- "$cur")
		compopt -o filenames 2>/dev/null
		;;
	maps)
		if [ ${#operands[@]} -eq 0 ]; then
			_thawfs_images "$cur"
		else
			_thawfs_words "$(thawfs maps "${operands[0]}" 2>/dev/null | sed -n 's/^# \([^ ]*\) (.*/\1/p')" "$cur"
		fi
		;;
	unpack)
		if [ ${#operands[@]} -eq 0 ]; then
			_thawfs_images "$cur"
		else
			_thawfs_files "$cur"
		fi
		;;
	*) _thawfs_files "$cur" ;;
	esac
}
complete -F _thawfs thawfs
