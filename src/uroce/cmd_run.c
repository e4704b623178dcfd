/*
 * `uroce run`: a program that was written for RDMA, with uroce for its device. It sets the environment and becomes the
 * program, so that signals and the exit status are the program's own. `uroce capture` is the same with a capture.
 */
#include "commands.h"
#include "program.h"
#include "view.h"

#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANNOT_RUN 126 /* as shells have it: found, but not to be run; 127: not found */
#define NOT_FOUND  127

struct run {
    const char *command; /* for messages */
    const char *capture, *filter, *impair;
    char *devices; /* UROCE_DEVICES; owned */
    bool verbose;
    char **program;
};

static int say(const struct run *run, int status, const char *what)
{
    fprintf(stderr, "uroce %s: %s\n", run->command, what);
    return status;
}

/* --device NAME=ADDRESS[,...], several times, or --device ADDRESS[,...] for the one device. */
static int add_device(struct run *run, const char *value)
{
    char *text;
    bool named = strchr(value, '=') != NULL;
    if (run->devices && (!named || !strchr(run->devices, '=')))
        return usage_error(run->command, "--device: several need a name each: NAME=ADDRESS[,ADDRESS...]");
    if (asprintf(&text, "%s%s%s", run->devices ? run->devices : "", run->devices ? ";" : "", value) < 0)
        return say(run, 1, strerror(ENOMEM));
    free(run->devices);
    run->devices = text;
    return 0;
}

static int parse(struct run *run, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        const char **into = strcmp(a, "--capture") == 0 || strcmp(a, "-o") == 0 ? &run->capture
                            : strcmp(a, "--filter") == 0                        ? &run->filter
                            : strcmp(a, "--impair") == 0                        ? &run->impair
                                                                                : NULL;
        bool device = strcmp(a, "--device") == 0;
        if (strcmp(a, "--") == 0 || a[0] != '-') {
            run->program = argv + i + (a[0] == '-');
            break;
        }
        if (strcmp(a, "--verbose") == 0) {
            run->verbose = true;
            continue;
        }
        if (!into && !device)
            return usage_error(run->command, "no such option before the program; `--` ends the options");
        if (!value)
            return usage_error(run->command, "an option has no value");
        if (into)
            *into = value;
        else if (add_device(run, value))
            return 2;
        i++;
    }
    if (!run->program || !*run->program)
        return usage_error(run->command, "which program?");
    return 0;
}

static void set_devices(const struct run *run)
{
    if (!run->devices)
        return;
    bool named = strchr(run->devices, '=') != NULL;
    setenv(named ? "UROCE_DEVICES" : "UROCE_ADDRESS", run->devices, 1);
    unsetenv(named ? "UROCE_ADDRESS" : "UROCE_DEVICES");
}

/* The file is emptied here, and each device appends: of a program that is several processes, or opens it again. */
static int set_capture(const struct run *run)
{
    char path[PATH_MAX + 1], here[PATH_MAX];
    if (run->capture && strcmp(run->capture, "-") == 0)
        setenv("UROCE_CAPTURE", "-", 1);
    else if (run->capture) {
        cleanup_close int fd = open(run->capture, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        bool full = run->capture[0] == '/';
        if (fd < 0 || (!full && !getcwd(here, sizeof here)))
            return -errno;
        /* The program may go to another directory before it opens the device. */
        int n = snprintf(path, sizeof path, "+%s%s%s", full ? "" : here, full ? "" : "/", run->capture);
        if (n >= (int)sizeof path)
            return -ENAMETOOLONG;
        setenv("UROCE_CAPTURE", path, 1);
    }
    if (run->filter)
        setenv("UROCE_CAPTURE_FILTER", run->filter, 1);
    if (run->impair)
        setenv("UROCE_IMPAIR", run->impair, 1);
    return 0;
}

/* Puts `value` before or behind what the variable has. */
static int join(const char *name, const char *value, const char *separator, bool before)
{
    const char *old = getenv(name);
    cleanup_free char *text = NULL;
    if (!old || !*old)
        return setenv(name, value, 1) ? -errno : 0;
    int n =
        before ? asprintf(&text, "%s%s%s", value, separator, old) : asprintf(&text, "%s%s%s", old, separator, value);
    return n < 0 || setenv(name, text, 1) ? -ENOMEM : 0;
}

/* The preload; and the drop-ins themselves, where the program's own library path would come before ours. */
static int set_preload(const struct program_libraries *lib, const char *program)
{
    static const char *const drop_ins[] = {"libibverbs.so.1", "librdmacm.so.1"};
    int r = join("LD_PRELOAD", lib->preload, ":", false);
    for (size_t i = 0; i < ARRAY_SIZE(drop_ins) - !lib->rdmacm && !r && program_has_rpath(program); i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", lib->dir, drop_ins[i]);
        r = join("LD_PRELOAD", path, ":", false);
    }
    return r;
}

static int set_environment(const struct run *run, const char *program)
{
    struct uroce_device_info devices[UROCE_DEVICES_MAX];
    struct program_libraries lib;
    char err[512], view[PATH_MAX];
    int r = program_libraries(&lib, err, sizeof err);
    if (r)
        return say(run, 1, err);
    set_devices(run);
    int n = uroce_list_devices(devices, UROCE_DEVICES_MAX, err, sizeof err);
    if (n < 0)
        return say(run, 1, err);
    r = view_make(devices, n, view, sizeof view, err, sizeof err);
    if (r)
        return say(run, 1, err);
    r = set_capture(run);
    if (r) {
        fprintf(stderr, "uroce %s: %s: %s\n", run->command, run->capture, strerror(-r));
        return 1;
    }
    program_is_holder();
    r = setenv("UROCE_SYSFS", view, 1) ? -errno : 0;
    r = r ? r : join("LD_LIBRARY_PATH", lib.dir, ":", true);
    r = r ? r : set_preload(&lib, program);
    if (r)
        return say(run, 1, strerror(-r));
    if (run->verbose)
        fprintf(stderr, "uroce %s: libraries %s, view %s, %d device%s, the first is %s\n", run->command, lib.dir, view,
                n, n == 1 ? "" : "s", devices[0].name);
    return 0;
}

static int run_program(struct run *run)
{
    char path[PATH_MAX], err[PATH_MAX + 256];
    int r = program_find(run->program[0], path, sizeof path);
    if (r) {
        fprintf(stderr, "uroce %s: %s: %s\n", run->command, run->program[0],
                r == -ENOENT ? "there is no such program" : strerror(-r));
        return r == -ENOENT ? NOT_FOUND : CANNOT_RUN;
    }
    if (program_check(path, err, sizeof err))
        return say(run, CANNOT_RUN, err);
    r = set_environment(run, path);
    if (r)
        return r;
    execv(path, run->program);
    fprintf(stderr, "uroce %s: %s: %s\n", run->command, path, strerror(errno));
    return CANNOT_RUN;
}

static int run_or_capture(const char *command, int argc, char **argv)
{
    struct run run = {.command = command};
    int r = parse(&run, argc, argv);
    if (!r && strcmp(command, "capture") == 0 && !run.capture)
        r = usage_error(command, "-o FILE is needed");
    r = r ? r : run_program(&run);
    free(run.devices);
    return r;
}

int cmd_run(int argc, char **argv)
{
    return run_or_capture("run", argc, argv);
}

int cmd_capture(int argc, char **argv)
{
    return run_or_capture("capture", argc, argv);
}
