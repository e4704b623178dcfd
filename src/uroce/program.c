#include "program.h"

#include "base/util.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define SCRIPTS_MAX 4   /* as many interpreters of interpreters as the kernel allows, about */
#define SEGMENTS    256 /* program headers that are looked at */
#define DYNAMIC_MAX 512 /* entries of the dynamic section */

int program_find(const char *name, char *ret_path, size_t size)
{
    if (strchr(name, '/')) {
        snprintf(ret_path, size, "%s", name);
        return access(name, F_OK) ? -errno : access(name, X_OK) ? -EACCES : 0;
    }
    const char *path = getenv("PATH");
    cleanup_free char *copy = strdup(path && *path ? path : "/usr/bin:/bin");
    int r = copy ? -ENOENT : -ENOMEM;
    for (char *at = copy, *dir; at && (dir = strsep(&at, ":"));) {
        char file[PATH_MAX];
        struct stat st;
        snprintf(file, sizeof file, "%s/%s", *dir ? dir : ".", name);
        if (stat(file, &st) || !S_ISREG(st.st_mode))
            continue;
        if (access(file, X_OK)) {
            r = -EACCES;
            continue;
        }
        snprintf(ret_path, size, "%s", file);
        return 0;
    }
    return r;
}

/* ---- what the loader would do ---- */

__attribute__((format(printf, 3, 4))) static int refuse(char *err, size_t err_size, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err, err_size, fmt, ap);
    va_end(ap);
    return -ENOEXEC;
}

/* It runs with more rights than its caller: the loader then takes no library from the caller's directories. */
static int check_rights(const char *path, const struct stat *st, char *err, size_t err_size)
{
    bool set_id = ((st->st_mode & S_ISUID) && st->st_uid != geteuid()) ||
                  ((st->st_mode & S_ISGID) && (st->st_mode & S_IXGRP) && st->st_gid != getegid());
    bool caps = geteuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0;
    if (!set_id && !caps)
        return 0;
    return refuse(err, err_size,
                  "%s %s, and the loader gives such programs no library of their caller's: run a copy without that "
                  "(`cp %s .`), or as the user that it becomes",
                  path, caps ? "has file capabilities" : "is set-uid or set-gid", path);
}

static int check_segments(int fd, const char *path, const Elf64_Ehdr *h, char *err, size_t err_size)
{
    for (int i = 0; i < h->e_phnum && i < SEGMENTS; i++) {
        Elf64_Phdr p;
        if (pread(fd, &p, sizeof p, (off_t)(h->e_phoff + (uint64_t)i * h->e_phentsize)) != (ssize_t)sizeof p)
            break;
        if (p.p_type == PT_INTERP)
            return 0;
    }
    return refuse(err, err_size, "%s is a static program: it has its own libraries in it, or none, and takes no other",
                  path);
}

bool program_has_rpath(const char *path)
{
    Elf64_Ehdr h;
    bool rpath = false, runpath = false;
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || pread(fd, &h, sizeof h, 0) != (ssize_t)sizeof h || memcmp(h.e_ident, ELFMAG, SELFMAG) ||
        h.e_ident[EI_CLASS] != ELFCLASS64)
        return false;
    for (int i = 0; i < h.e_phnum && i < SEGMENTS; i++) {
        Elf64_Phdr p;
        if (pread(fd, &p, sizeof p, (off_t)(h.e_phoff + (uint64_t)i * h.e_phentsize)) != (ssize_t)sizeof p)
            break;
        if (p.p_type != PT_DYNAMIC)
            continue;
        Elf64_Dyn d = {.d_tag = DT_NULL};
        for (unsigned k = 0; k < DYNAMIC_MAX; k++) {
            if (pread(fd, &d, sizeof d, (off_t)(p.p_offset + k * sizeof d)) != (ssize_t)sizeof d || d.d_tag == DT_NULL)
                break;
            rpath |= d.d_tag == DT_RPATH;
            runpath |= d.d_tag == DT_RUNPATH;
        }
    }
    return rpath && !runpath; /* with both, the loader does not look at the first */
}

/* "#!/usr/bin/env python3" */
static int script_interpreter(char *line, char *ret, size_t size)
{
    char *save = NULL, *program = strtok_r(line + 2, " \t\n", &save), *arg = strtok_r(NULL, " \t\n", &save);
    if (!program)
        return -ENOEXEC;
    const char *base = strrchr(program, '/');
    if (arg && base && strcmp(base, "/env") == 0 && arg[0] != '-' && !strchr(arg, '='))
        return program_find(arg, ret, size);
    snprintf(ret, size, "%s", program);
    return 0;
}

int program_check(const char *path, char *err, size_t err_size)
{
    char at[PATH_MAX], begin[256];
    snprintf(at, sizeof at, "%s", path);
    for (int i = 0; i < SCRIPTS_MAX; i++) {
        struct stat st;
        cleanup_close int fd = open(at, O_RDONLY | O_CLOEXEC);
        if (stat(at, &st))
            return refuse(err, err_size, "%s: %s", at, strerror(errno));
        if (check_rights(at, &st, err, err_size))
            return -ENOEXEC;
        ssize_t n = fd < 0 ? 0 : pread(fd, begin, sizeof begin - 1, 0);
        if (n < 4)
            return 0; /* not for reading: the kernel will say what it is */
        begin[n] = '\0';
        if (begin[0] == '#' && begin[1] == '!') {
            begin[strcspn(begin, "\n")] = '\0';
            if (script_interpreter(begin, at, sizeof at))
                return 0;
            continue;
        }
        Elf64_Ehdr mine, h;
        cleanup_close int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        if (memcmp(begin, ELFMAG, SELFMAG))
            return 0;
        if (pread(self, &mine, sizeof mine, 0) != (ssize_t)sizeof mine ||
            pread(fd, &h, sizeof h, 0) < (ssize_t)sizeof h)
            return 0;
        if (h.e_ident[EI_CLASS] != mine.e_ident[EI_CLASS] || h.e_machine != mine.e_machine)
            return refuse(err, err_size, "%s is for another kind of machine (32 bits?) than uroce's libraries", at);
        return check_segments(fd, at, &h, err, err_size);
    }
    return 0;
}

/* ---- our own program and libraries ---- */

static void own_path(char ret[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", ret, PATH_MAX - 1);
    ret[n < 0 ? 0 : n] = '\0';
}

void program_is_holder(void)
{
    char self[PATH_MAX];
    own_path(self);
    if (*self)
        setenv("UROCE_HOLDER", self, 0);
}

static bool has(const char *dir, const char *file)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return access(path, R_OK) == 0;
}

int program_libraries(struct program_libraries *ret, char *err, size_t err_size)
{
    char self[PATH_MAX], dir[PATH_MAX];
    own_path(self);
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    /* Of the build tree; beside the command, wherever that was installed to; where it was to be installed to. */
    const struct {
        const char *base, *libraries, *preload;
    } places[] = {
        {self, "../roce/verbs", "../roce/preload"},
        {self, UROCE_LIBRARIES_FROM_BIN, UROCE_LIBRARIES_FROM_BIN},
        {"", UROCE_LIBRARIES, UROCE_LIBRARIES},
    };
    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        char path[PATH_MAX * 2];
        snprintf(path, sizeof path, "%s/%s", places[i].base, places[i].libraries);
        if (!has(path, "libibverbs.so.1") || !realpath(path, dir))
            continue;
        ret->rdmacm = has(dir, "librdmacm.so.1");
        snprintf(path, sizeof path, "%s/%s/liburoce-fs.so", places[i].base, places[i].preload);
        char preload[PATH_MAX];
        if (!realpath(path, preload))
            continue;
        if (strlen(dir) >= sizeof ret->dir || strlen(preload) >= sizeof ret->preload || strpbrk(dir, ":; ") ||
            strpbrk(preload, ":; ")) {
            snprintf(err, err_size,
                     "the loader cannot take libraries from %s: the path is too long or has a space, ':' or ';'", dir);
            return -ENOENT;
        }
        strcpy(ret->dir, dir);
        strcpy(ret->preload, preload);
        return 0;
    }
    snprintf(err, err_size, "the drop-in libraries are neither in %s nor in %s/%s: install them with `meson install`",
             UROCE_LIBRARIES, self, UROCE_LIBRARIES_FROM_BIN);
    return -ENOENT;
}
