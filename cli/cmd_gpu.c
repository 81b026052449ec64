/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs gpu: what follows is one of the commands below; each takes some of the options. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/verbs.h"
#include "common/bytes.h"
#include "common/json.h"
#include "common/log.h"
#include "restore/gpu_image.h"
#include "restore/gpu_resume.h"
#include "restore/gpu_serve.h"

#define LIST_MAX 64

enum {
	OPT_GPU = CLI_OPT_OWN,
	OPT_PLAIN,
	OPT_DISCARD,
	OPT_RAW,
	OPT_VERIFY,
	OPT_MAP,
	OPT_ANYWHERE,
	OPT_ANY_CHIP,
	OPT_READ_BACK,
	OPT_PROFILE,
	OPT_SOCKET,
	OPT_ALLOW,
	OPT_TIMEOUT,
	OPT_SLOT,
	OPT_SLOTS,
	OPT_STREAMS,
	OPT_STORAGE,
	OPT_TOOL,
};

static const struct option longs[] = {
	{ "output", required_argument, NULL, 'o' },
	{ "level", required_argument, NULL, 'z' },
	{ "gpu", required_argument, NULL, OPT_GPU },
	{ "plain", no_argument, NULL, OPT_PLAIN },
	{ "discard", required_argument, NULL, OPT_DISCARD },
	{ "raw", no_argument, NULL, OPT_RAW },
	{ "verify", no_argument, NULL, OPT_VERIFY },
	{ "map", required_argument, NULL, OPT_MAP },
	{ "anywhere", no_argument, NULL, OPT_ANYWHERE },
	{ "any-chip", no_argument, NULL, OPT_ANY_CHIP },
	{ "read-back", no_argument, NULL, OPT_READ_BACK },
	{ "profile", no_argument, NULL, OPT_PROFILE },
	{ "socket", required_argument, NULL, OPT_SOCKET },
	{ "allow", required_argument, NULL, OPT_ALLOW },
	{ "timeout", required_argument, NULL, OPT_TIMEOUT },
	{ "slot", required_argument, NULL, OPT_SLOT },
	{ "slots", required_argument, NULL, OPT_SLOTS },
	{ "streams", required_argument, NULL, OPT_STREAMS },
	{ "storage", required_argument, NULL, OPT_STORAGE },
	{ "tool", required_argument, NULL, OPT_TOOL },
	CLI_LONG_THREADS,
	CLI_LONG_BASE_PATH,
	CLI_LONG_BYTES,
	CLI_LONG_JSON,
	CLI_LONG_END,
};

struct gpu_cli {
	struct cli cli;
	const struct command *command;
	struct gpu_driver *drv;
	struct thaw_gpu_save_opts save;
	struct thaw_gpu_load_opts load;
	struct thaw_gpu_map map[LIST_MAX];
	const char *out, *gpu, *socket, *storage, *tool;
	uid_t allow[LIST_MAX];
	size_t n_allow;
	unsigned timeout_ms;
	bool plain, profile;
	const char *discard[LIST_MAX];
	size_t n_discard;
	struct gpu_profile in, back;
};

/* -- numbers ----------------------------------------------------------------------------------------- */

static double gb_per_s(uint64_t bytes, uint64_t ns)
{
	return ns ? (double)bytes / (double)ns : 0.0;
}

static void put_profile_json(struct json *js, const char *key, const struct gpu_profile *p)
{
	json_object_line(js, key);
	json_u64(js, "bytes", p->bytes);
	json_u64(js, "zero_bytes", p->zero_bytes);
	json_u64(js, "pieces", p->pieces);
	json_double(js, "wall_s", (double)p->wall_ns / 1e9, 6);
	json_double(js, "fill_s", (double)p->fill_ns / 1e9, 6);
	json_double(js, "slot_wait_s", (double)p->slot_ns / 1e9, 6);
	json_double(js, "copy_wait_s", (double)p->copy_ns / 1e9, 6);
	json_double(js, "done_s", (double)p->done_ns / 1e9, 6);
	json_close(js);
}

static void put_profile(const struct gpu_cli *g, const char *what, const struct gpu_profile *p)
{
	char a[SIZE_TEXT_EXACT], b[SIZE_TEXT_EXACT];

	printf("%s: %s in %.3f s, %.2f GB/s; %s cleared\n", what, cli_size_text(&g->cli, p->bytes, a),
	       (double)p->wall_ns / 1e9, gb_per_s(p->bytes, p->wall_ns), cli_size_text(&g->cli, p->zero_bytes, b));
	if (!g->profile)
		return;
	printf("  filling slots    %.3f s of threads, %.2f GB/s for each\n", (double)p->fill_ns / 1e9,
	       gb_per_s(p->bytes, p->fill_ns));
	printf("  waiting for one  %.3f s of threads\n", (double)p->slot_ns / 1e9);
	printf("  copies awaited   %.3f s\n", (double)p->copy_ns / 1e9);
	printf("  taking over      %.3f s, %.2f GB/s\n", (double)p->done_ns / 1e9, gb_per_s(p->bytes, p->done_ns));
}

/* -- devices ------------------------------------------------------------------------------------------- */

static void put_device_json(struct json *js, const struct gpu_info *info)
{
	char uuid[GPU_UUID_TEXT];

	json_object_line(js, NULL);
	json_u64(js, "ordinal", info->ordinal);
	json_string(js, "uuid", gpu_uuid_text(info->uuid, uuid));
	json_string(js, "name", info->name);
	json_string(js, "pci", info->pci);
	json_format(js, "compute", "%u.%u", info->major, info->minor);
	json_u64(js, "total_bytes", info->total_bytes);
	json_close(js);
}

static int devices(struct gpu_cli *g, char **args, int n)
{
	int version = gpu_driver_version(g->drv);
	char uuid[GPU_UUID_TEXT], size[SIZE_TEXT_EXACT];
	struct json js;

	(void)args;
	(void)n;
	if (!g->cli.json) {
		printf("driver: CUDA %d.%d\n", version / 1000, version % 1000 / 10);
		for (unsigned i = 0; i < gpu_count(g->drv); i++) {
			const struct gpu_info *info = gpu_device(g->drv, i);

			printf("%u  %s  %s  %s (%u.%u)  %s\n", i, gpu_uuid_text(info->uuid, uuid), info->pci,
			       info->name, info->major, info->minor, cli_size_text(&g->cli, info->total_bytes, size));
		}
		return CLI_GOOD;
	}
	json_begin(&js, stdout);
	json_object(&js, NULL);
	json_format(&js, "driver", "%d.%d", version / 1000, version % 1000 / 10);
	json_array(&js, "gpus");
	for (unsigned i = 0; i < gpu_count(g->drv); i++)
		put_device_json(&js, gpu_device(g->drv, i));
	json_close(&js);
	json_close(&js);
	json_end(&js);
	return CLI_GOOD;
}

/* a GPU by number or UUID. Return: its ordinal, or -EINVAL after a message */
static int parse_gpu(const struct gpu_cli *g, const char *text)
{
	uint8_t uuid[16];
	long ordinal;

	if (!text)
		return 0;
	if (!cli_number(text, 0, (long)gpu_count(g->drv) - 1, &ordinal))
		return (int)ordinal;
	if (!gpu_uuid_parse(text, uuid) && gpu_find(g->drv, uuid) >= 0)
		return gpu_find(g->drv, uuid);
	log_error("there is no GPU '%s' (see 'thawfs gpu devices')", text);
	return -EINVAL;
}

/* -- save ---------------------------------------------------------------------------------------------- */

static bool is_discarded(const struct gpu_cli *g, const char *id)
{
	for (size_t i = 0; i < g->n_discard; i++) {
		if (!strcmp(g->discard[i], id))
			return true;
	}
	return false;
}

static int save_loaded(struct gpu_cli *g, const struct thaw_gpu_loaded *loaded, struct pack_result *ret)
{
	struct thaw_gpu_buffer *buffers = calloc(loaded->n_buffers + 1, sizeof(*buffers));
	int r;

	if (!buffers)
		return gpu_fail(-ENOMEM, "out of memory");
	for (size_t i = 0; i < loaded->n_buffers; i++) {
		const struct thaw_gpu_loaded_buffer *b = &loaded->buffers[i];

		buffers[i] = (struct thaw_gpu_buffer){
			.id = b->id,
			.ordinal = b->ordinal,
			.addr = b->addr,
			.size = b->size,
			.mapped_size = g->plain ? 0 : b->mapped_size,
			.exportable = !g->plain,
			.discardable = is_discarded(g, b->id),
		};
	}
	r = thaw_gpu_save(g->drv, g->out, buffers, loaded->n_buffers, &g->save, ret);
	free(buffers);
	return r;
}

static void put_saved(const struct gpu_cli *g, size_t n, const struct pack_result *res)
{
	char id[33], a[SIZE_TEXT_EXACT], b[SIZE_TEXT_EXACT];
	struct json js;

	image_id_text(res->id, id);
	if (!g->cli.json) {
		printf("%s: %zu buffer%s, %s in %s\n", g->out, n, cli_plural(n),
		       cli_size_text(&g->cli, res->logical_bytes, a), cli_size_text(&g->cli, res->image_bytes, b));
		put_profile(g, "from the GPU", &g->back);
		return;
	}
	json_begin(&js, stdout);
	json_object(&js, NULL);
	json_string(&js, "image", g->out);
	json_string(&js, "id", id);
	json_u64(&js, "n_buffers", n);
	json_u64(&js, "logical_bytes", res->logical_bytes);
	json_u64(&js, "hole_bytes", res->hole_bytes);
	json_u64(&js, "image_bytes", res->image_bytes);
	put_profile_json(&js, "to_gpu", &g->in);
	put_profile_json(&js, "from_gpu", &g->back);
	json_close(&js);
	json_end(&js);
}

static int save(struct gpu_cli *g, char **args, int n)
{
	int ordinal = parse_gpu(g, g->gpu), r, r2;
	struct thaw_gpu_loaded *loaded = NULL;
	struct pack_result res = { 0 };

	if (!g->out)
		return cli_usage(&g->cli, "where to? -o OUT.thaw");
	if (!strcmp(g->out, "-") && (g->cli.json || g->save.verify))
		return cli_usage(&g->cli, "standard output can only take the image");
	if (ordinal < 0)
		return CLI_FAILED;
	r = thaw_gpu_load_files(g->drv, (const char *const *)args, (size_t)n, (unsigned)ordinal,
				g->plain ? GPU_PLAIN : GPU_VMM, &g->load, &loaded);
	if (r)
		return cli_exit_code(r);
	r = save_loaded(g, loaded, &res);
	r2 = thaw_gpu_unload(loaded);
	if (!r && strcmp(g->out, "-") != 0)
		put_saved(g, (size_t)n, &res);
	return cli_exit_code(r ? r : r2);
}

/* -- load ---------------------------------------------------------------------------------------------- */

static void put_loaded(const struct gpu_cli *g, const char *path, const struct thaw_gpu_loaded *loaded)
{
	struct json js;

	if (!g->cli.json) {
		printf("%s: %zu buffer%s loaded\n", path, loaded->n_buffers, cli_plural(loaded->n_buffers));
		put_profile(g, "to the GPU", &g->in);
		if (g->load.read_back)
			put_profile(g, "read back and compared", &g->back);
		return;
	}
	json_begin(&js, stdout);
	json_object(&js, NULL);
	json_string(&js, "image", path);
	json_array(&js, "buffers");
	for (size_t i = 0; i < loaded->n_buffers; i++) {
		json_object_line(&js, NULL);
		json_string(&js, "id", loaded->buffers[i].id);
		json_u64(&js, "gpu", loaded->buffers[i].ordinal);
		json_format(&js, "addr", "0x%" PRIx64, loaded->buffers[i].addr);
		json_u64(&js, "size", loaded->buffers[i].size);
		json_close(&js);
	}
	json_close(&js);
	put_profile_json(&js, "to_gpu", &g->in);
	if (g->load.read_back)
		put_profile_json(&js, "read_back", &g->back);
	json_close(&js);
	json_end(&js);
}

static int load(struct gpu_cli *g, char **args, int n)
{
	struct thaw_gpu_loaded *loaded = NULL;
	int r = thaw_gpu_load(g->drv, args[0], &g->load, &loaded);

	(void)n;
	if (r)
		return cli_exit_code(r);
	put_loaded(g, args[0], loaded);
	return cli_exit_code(thaw_gpu_unload(loaded));
}

/* -- serve --------------------------------------------------------------------------------------------- */

static void say_ready(void *ctx)
{
	const struct gpu_cli *g = ctx;

	printf("serving %u GPU%s at %s\n", gpu_count(g->drv), cli_plural(gpu_count(g->drv)), g->socket);
	fflush(stdout);
}

static int serve(struct gpu_cli *g, char **args, int n)
{
	const struct gpu_serve_opts opts = {
		.socket = g->socket,
		.allow = g->allow,
		.n_allow = g->n_allow,
		.threads = g->cli.threads,
		.timeout_ms = g->timeout_ms,
		.pipe = g->load.pipe,
		.stop = &cli_stop,
		.ready = say_ready,
		.ctx = g,
	};

	(void)args;
	(void)n;
	if (!g->socket)
		return cli_usage(&g->cli, "where? --socket PATH");
	return cli_exit_code(gpu_serve(g->drv, &opts));
}

/* -- resume -------------------------------------------------------------------------------------------- */

static int resume(struct gpu_cli *g, char **args, int n)
{
	struct gpu_uuid_pair pairs[LIST_MAX];
	const struct gpu_resume_opts opts = {
		.pairs = pairs,
		.n_pairs = g->load.n_map,
		.threads = g->cli.threads,
		.storage = g->storage,
		.tool = g->tool,
		.pipe = g->load.pipe,
		.stop = &cli_stop,
	};
	struct gpu_resume_result res = { 0 };
	char size[SIZE_TEXT_EXACT];
	long pid;
	int r;

	(void)n;
	if (cli_number(args[0], 1, 0x3fffffff, &pid))
		return cli_usage(&g->cli, "'%s' is no process id", args[0]);
	for (size_t i = 0; i < g->load.n_map; i++) {
		memcpy(pairs[i].before, g->map[i].from, sizeof(pairs[i].before));
		memcpy(pairs[i].after, g->map[i].to, sizeof(pairs[i].after));
	}
	r = gpu_resume(g->drv, (pid_t)pid, &opts, &res);
	if (r)
		return cli_exit_code(r);
	printf("process %ld runs: %s of memory looked through in %.3f s, restored in %.3f s\n", pid,
	       cli_size_text(&g->cli, res.resident_bytes, size), (double)res.resident_ns / 1e9,
	       (double)res.restore_ns / 1e9);
	return CLI_GOOD;
}

/* -- options ------------------------------------------------------------------------------------------- */

static const struct command {
	const char *name;
	int (*run)(struct gpu_cli *g, char **args, int n);
	int min, max;    /* operands */
	int options[16]; /* besides those that cli_getopt() knows */
} commands[] = {
	{ "devices", devices, 0, 0, { 0 } },
	{ "save",
	  save,
	  1,
	  100000,
	  { 'o', 'z', OPT_GPU, OPT_PLAIN, OPT_DISCARD, OPT_RAW, OPT_VERIFY, OPT_PROFILE, OPT_SLOT, OPT_SLOTS,
	    OPT_STREAMS } },
	{ "resume", resume, 1, 1, { OPT_MAP, OPT_STORAGE, OPT_TOOL, OPT_SLOT, OPT_SLOTS, OPT_STREAMS } },
	{ "serve", serve, 0, 0, { OPT_SOCKET, OPT_ALLOW, OPT_TIMEOUT, OPT_SLOT, OPT_SLOTS, OPT_STREAMS } },
	{ "load",
	  load,
	  1,
	  1,
	  { OPT_SOCKET, OPT_TIMEOUT, OPT_SLOT, OPT_SLOTS, OPT_STREAMS, OPT_MAP, OPT_ANYWHERE, OPT_ANY_CHIP,
	    OPT_READ_BACK, OPT_PROFILE } },
};

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	}
	return NULL;
}

static bool takes(const struct command *c, int opt)
{
	for (size_t i = 0; i < ARRAY_SIZE(c->options); i++) {
		if (c->options[i] == opt)
			return true;
	}
	return false;
}

static int parse_map(struct gpu_cli *g, const char *text)
{
	struct thaw_gpu_map *m = &g->map[g->load.n_map];
	char from[GPU_UUID_TEXT] = "";

	if (g->load.n_map == LIST_MAX)
		return cli_usage(&g->cli, "more than %d maps", LIST_MAX);
	if (strlen(text) > sizeof(from))
		memcpy(from, text, sizeof(from) - 1);
	if (!*from || text[sizeof(from) - 1] != '=' || gpu_uuid_parse(from, m->from) ||
	    gpu_uuid_parse(text + sizeof(from), m->to))
		return cli_usage(&g->cli, "'%s' is not OLD-UUID=NEW-UUID", text);
	g->load.map = g->map;
	g->load.n_map++;
	return 0;
}

static int take_option(struct gpu_cli *g, int opt)
{
	struct gpu_pipe_opts *pipe = &g->load.pipe;
	uint64_t size;
	long number;

	switch (opt) {
	case 'o':
		g->out = optarg;
		break;
	case 'z':
		if (cli_number(optarg, -7, 19, &number))
			return cli_usage(&g->cli, "level '%s' is not -7 to 19", optarg);
		g->save.level = (int)number;
		break;
	case OPT_GPU:
		g->gpu = optarg;
		break;
	case OPT_PLAIN:
		g->plain = true;
		break;
	case OPT_DISCARD:
		if (g->n_discard == LIST_MAX)
			return cli_usage(&g->cli, "more than %d buffers to discard", LIST_MAX);
		g->discard[g->n_discard++] = optarg;
		break;
	case OPT_RAW:
		g->save.codec = PACK_RAW;
		break;
	case OPT_VERIFY:
		g->save.verify = true;
		break;
	case OPT_MAP:
		return parse_map(g, optarg);
	case OPT_ANYWHERE:
		g->load.anywhere = true;
		break;
	case OPT_ANY_CHIP:
		g->load.other_chip = true;
		break;
	case OPT_READ_BACK:
		g->load.read_back = true;
		break;
	case OPT_PROFILE:
		g->profile = true;
		break;
	case OPT_SLOT:
		if (cli_size(optarg, &size) || size < (64u << 10) || size > (1u << 30) || (size & (size - 1)))
			return cli_usage(&g->cli, "slot size '%s' is not a power of two from 64K to 1G", optarg);
		pipe->slot_bytes = (size_t)size;
		break;
	case OPT_SLOTS:
		if (cli_number(optarg, 2, 4096, &number))
			return cli_usage(&g->cli, "'%s' is not a number from 2 to 4096", optarg);
		pipe->n_slots = (unsigned)number;
		break;
	case OPT_STREAMS:
		if (cli_number(optarg, 1, 64, &number))
			return cli_usage(&g->cli, "'%s' is not a number from 1 to 64", optarg);
		pipe->n_streams = (unsigned)number;
		break;
	case OPT_STORAGE:
		g->storage = optarg;
		break;
	case OPT_TOOL:
		g->tool = optarg;
		break;
	case OPT_SOCKET:
		g->socket = optarg;
		break;
	case OPT_ALLOW:
		if (g->n_allow == LIST_MAX || cli_number(optarg, 0, 0x7fffffff, &number))
			return cli_usage(&g->cli, "'%s' is no user id, or there are too many", optarg);
		g->allow[g->n_allow++] = (uid_t)number;
		break;
	case OPT_TIMEOUT:
		if (cli_number(optarg, 1, 1000000, &number))
			return cli_usage(&g->cli, "'%s' is not a number of seconds", optarg);
		g->timeout_ms = (unsigned)number * 1000;
		break;
	}
	return 0;
}

/* the command stands first; its options are those that it has a use for */
static int parse(struct gpu_cli *g, int argc, char **argv)
{
	int opt, code;

	while ((opt = cli_getopt(&g->cli, argc, argv, "o:z:j:b", longs)) >= 0) {
		if (opt == '?')
			return cli_stop_code(&g->cli);
		if (g->command && !takes(g->command, opt))
			return cli_usage(&g->cli, "'%s' has no such option as '%s'", g->command->name,
					 argv[optind - 1]);
		code = take_option(g, opt);
		if (code)
			return code;
	}
	return -1;
}

/* the options are good: do it */
static int run_command(struct gpu_cli *g, char **args, int n)
{
	const struct command *c = g->command;
	int code;

	assert(c);
	if (n < c->min || n > c->max)
		return cli_usage(&g->cli, "too %s arguments for '%s'", n < c->min ? "few" : "many", c->name);
	cli_catch_signals();
	g->save.threads = g->load.threads = g->cli.threads;
	g->save.stop = g->load.stop = &cli_stop;
	g->save.pipe = g->load.pipe;
	g->load.profile = &g->in;
	g->load.back_profile = g->save.profile = &g->back;
	g->load.base_path = g->cli.base_path;
	g->load.helper = g->socket;
	g->load.helper_timeout_ms = g->timeout_ms;
	code = gpu_driver_open(&g->drv) ? CLI_FAILED : c->run(g, args, n);
	gpu_driver_close(g->drv);
	return code;
}

static int run_gpu(const struct verb *verb, int argc, char **argv)
{
	struct gpu_cli *g = calloc(1, sizeof(*g));
	int code;

	if (!g)
		return CLI_FAILED;
	g->cli.verb = verb;
	if (argc > 1)
		g->command = find_command(argv[1]);
	code = parse(g, argc, argv);
	if (code < 0 && argc == optind)
		code = cli_usage(&g->cli, "which command? devices, save, load, serve or resume");
	else if (code < 0 && !g->command)
		code = cli_usage(&g->cli, "'%s' is no GPU command, or does not stand first", argv[optind]);
	if (code < 0)
		code = run_command(g, argv + optind + 1, argc - optind - 1);
	free(g);
	return code;
}

const struct verb verb_gpu = {
	.name = "gpu",
	.synopsis = "devices | save -o OUT.thaw FILE… | load IMAGE | serve --socket PATH | resume PID",
	.summary = "Device buffers in images: save, load, list GPUs",
	.help = "devices: the GPUs of this machine.\n"
		"save: copies files into memory of a GPU and saves that as an image, each file a buffer of its name.\n"
		"load: puts the buffers of an image, or of a directory with gpu/manifest.json, on the GPUs they are\n"
		"of, at their addresses, tells how fast that went, and releases them: a check and a measure.\n"
		"serve: fills memory of other processes, which export it and hand it over, until it gets a signal.\n"
		"resume: a process that the driver checkpointed (cuda-checkpoint): brings in its memory by many "
		"threads,\n"
		"then has the driver restore and unlock it.\n"
		"Programs save and load their own memory by thaw_gpu_save() and thaw_gpu_load().\n\n"
		"  -o, --output FILE    the image; - is standard output\n"
		"  -z, --level N        as for pack\n"
		"      --raw            do not compress\n"
		"      --gpu GPU        number or UUID of the GPU to save from (default: 0)\n"
		"      --plain          memory at an address of the driver's choice\n"
		"      --discard ID     do not keep this buffer's bytes; may be repeated\n"
		"      --verify         read the image again before it gets its name\n"
		"      --map OLD=NEW    use another GPU, by UUIDs; if given, every GPU of the image needs one\n"
		"      --anywhere       do not insist on the addresses that buffers had\n"
		"      --any-chip       load on another kind of GPU\n"
		"      --read-back      read all back and compare with the checksums\n"
		"      --base-path DIR  look for base images there too; may be repeated\n"
		"  -j, --threads N      threads that compress or decode\n"
		"      --socket PATH    where to serve; load: have the helper there do it\n"
		"      --allow UID      let this user in too, besides the own and root; may be repeated\n"
		"      --timeout N      give up a command that takes more than N seconds\n"
		"      --slot SIZE      size of a slot of pinned memory (default: 8M)\n"
		"      --slots N        slots for each GPU (default: 32)\n"
		"      --streams N      copies that go on side by side (default: 2)\n"
		"      --storage IMAGE  resume: what the driver leaves to its caller to fill, a buffer for each GPU\n"
		"      --tool PROGRAM   resume: run this where the driver has no checkpoints (default: "
		"cuda-checkpoint)\n"
		"      --profile        what each stage took\n"
		"  -b, --bytes          exact sizes\n"
		"      --json           as JSON\n",
	.run = run_gpu,
};
