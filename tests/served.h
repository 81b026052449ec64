/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of page servers: images of a core file, a good one and one with a damaged chunk, and memory to be served.
 */
#ifndef THAW_TESTS_SERVED_H
#define THAW_TESTS_SERVED_H

#include <elf.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "imgfmt/pack.h"
#include "tests/test.h"

#define PAGE 4096u
#define LEN  (24u << 20)
#define BASE 0x10000000ull

static pid_t maker; /* children that exit() remove nothing */
static char dir[] = "/tmp/thaw-pageserver.XXXXXX";
static char core_path[64], image[64], damaged[64];
static uint8_t *want; /* what the memory must be */

static inline void remove_files(void)
{
	if (getpid() != maker)
		return;
	unlink(core_path);
	unlink(image);
	unlink(damaged);
	rmdir(dir);
}

static inline void write_core(void)
{
	Elf64_Ehdr eh = { .e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
			  .e_type = ET_CORE,
			  .e_machine = EM_X86_64,
			  .e_version = EV_CURRENT,
			  .e_phoff = sizeof(eh),
			  .e_ehsize = sizeof(eh),
			  .e_phentsize = sizeof(Elf64_Phdr),
			  .e_phnum = 1 };
	Elf64_Phdr ph = { .p_type = PT_LOAD,
			  .p_flags = PF_R | PF_W,
			  .p_offset = PAGE,
			  .p_vaddr = BASE,
			  .p_filesz = LEN,
			  .p_memsz = LEN,
			  .p_align = PAGE };
	FILE *f = fopen(core_path, "w");

	CHECK(f);
	CHECK(fwrite(&eh, sizeof(eh), 1, f) == 1 && fwrite(&ph, sizeof(ph), 1, f) == 1);
	CHECK(fseek(f, PAGE, SEEK_SET) == 0 && fwrite(want, LEN, 1, f) == 1 && fclose(f) == 0);
}

/* random words, with a tail of zeros in every fourth MiB; not compressed, so that it is clear what damage hits */
static inline void make_images(void)
{
	struct pack_opts opts = { .src = core_path, .out = image, .codec = PACK_RAW, .no_fsync = true };
	struct pack_result result;
	uint64_t state = 88172645463325252u;
	uint8_t byte;
	int fd;

	CHECK(mkdtemp(dir));
	snprintf(core_path, sizeof(core_path), "%s/core", dir);
	snprintf(image, sizeof(image), "%s/i.thaw", dir);
	snprintf(damaged, sizeof(damaged), "%s/d.thaw", dir);
	maker = getpid();
	atexit(remove_files);
	want = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(want != MAP_FAILED);
	for (size_t i = 0; i < LEN; i += 8) {
		uint64_t word = (i >> 20) % 4 == 3 ? 0 : test_random(&state);

		memcpy(want + i, &word, sizeof(word));
	}
	write_core();
	CHECK_EQ(pack(&opts, &result), 0);
	opts.out = damaged;
	CHECK_EQ(pack(&opts, &result), 0);
	fd = open(damaged, O_RDWR);
	CHECK(fd >= 0 && pread(fd, &byte, 1, 3 << 20) == 1);
	byte ^= 1;
	CHECK(pwrite(fd, &byte, 1, 3 << 20) == 1 && close(fd) == 0);
}

static inline int open_uffd(void)
{
	struct uffdio_api api = { .api = UFFD_API,
				  .features = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP |
					      UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* LEN bytes that somebody has to serve through @uffd */
static inline uint8_t *map_missing(int uffd)
{
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	uint8_t *mem = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(mem != MAP_FAILED);
	reg.range.start = (uintptr_t)mem;
	reg.range.len = LEN;
	CHECK(ioctl(uffd, UFFDIO_REGISTER, &reg) == 0);
	return mem;
}

#endif
