/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz the parser of ELF cores: the input is the file. */
#include "tests/parse_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* the packer runs the parser over nothing else */
	if (parse_detect(data, size) == THAW_CORE)
		(void)parse_check_file(parse_elf, data, size, NULL);
	return 0;
}
