#include "cli.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

int cli_json(json_t *j)
{
    int bad = !j || json_dumpf(j, stdout, JSON_INDENT(2) | JSON_SORT_KEYS) < 0;

    json_decref(j);
    if (!bad)
        putchar('\n');
    if (bad || fflush(stdout)) {
        cli_error("output cannot be written");
        return EXIT_FAILED;
    }
    return EXIT_OK;
}

const char *cli_size(uint64_t bytes, char buf[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes;
    unsigned u = 0;

    while (v >= 1024 && u + 1 < ARRAY_SIZE(units)) {
        v /= 1024;
        u++;
    }
    snprintf(buf, 32, u == 0 || v >= 100 ? "%.0f %s" : "%.1f %s", v, units[u]);
    return buf;
}

const char *cli_time(int64_t ns, char buf[32])
{
    time_t t = (time_t)(ns / (int64_t)NSEC_PER_SEC);
    struct tm tm;

    if (!localtime_r(&t, &tm) || !strftime(buf, 32, "%Y-%m-%d %H:%M:%S", &tm))
        strcpy(buf, "?");
    return buf;
}

void cli_mode(uint32_t mode, char ret[11])
{
    static const char rwx[] = "rwxrwxrwx";

    ret[0] = S_ISDIR(mode)    ? 'd'
             : S_ISLNK(mode)  ? 'l'
             : S_ISFIFO(mode) ? 'p'
             : S_ISSOCK(mode) ? 's'
             : S_ISCHR(mode)  ? 'c'
             : S_ISBLK(mode)  ? 'b'
                              : '-';
    for (int i = 0; i < 9; i++)
        ret[1 + i] = mode & (0400u >> i) ? rwx[i] : '-';
    if (mode & S_ISUID)
        ret[3] = mode & S_IXUSR ? 's' : 'S';
    if (mode & S_ISGID)
        ret[6] = mode & S_IXGRP ? 's' : 'S';
    if (mode & S_ISVTX)
        ret[9] = mode & S_IXOTH ? 't' : 'T';
    ret[10] = 0;
}

json_t *cli_json_bytes(const char *s)
{
    json_t *j = json_string(s);
    char out[3 * 4200], *p = out;

    if (j)
        return j;
    for (; *s && p < out + sizeof out - 4; s++) {
        if ((unsigned char)*s < 0x80) {
            *p++ = *s;
        } else {
            memcpy(p, "\xef\xbf\xbd", 3);
            p += 3;
        }
    }
    *p = 0;
    return json_string(out);
}

static const char *type_name(uint32_t mode)
{
    return S_ISDIR(mode)    ? "directory"
           : S_ISLNK(mode)  ? "symlink"
           : S_ISREG(mode)  ? "file"
           : S_ISFIFO(mode) ? "fifo"
           : S_ISSOCK(mode) ? "socket"
                            : "device";
}

static double seconds(struct timespec t)
{
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

json_t *cli_json_stat(const char *path, const struct stat *st)
{
    char mode[8];

    snprintf(mode, sizeof mode, "%04o", st->st_mode & 07777);
    return json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "path", cli_json_bytes(path),
                     "type", type_name(st->st_mode), "mode", mode, "ino", (json_int_t)st->st_ino, "links",
                     (json_int_t)st->st_nlink, "uid", (json_int_t)st->st_uid, "gid", (json_int_t)st->st_gid, "size",
                     (json_int_t)st->st_size, "used", (json_int_t)st->st_blocks * 512, "atime", seconds(st->st_atim),
                     "mtime", seconds(st->st_mtim), "ctime", seconds(st->st_ctim));
}

/* ---- progress ---- */

#define REDRAW_NS (200 * NSEC_PER_MSEC)

struct progress {
    pthread_mutex_t lock;
    const char *what;
    uint64_t start_ns, drawn_ns, done, total, files;
    bool final, drawn;
};

struct progress *progress_new(const char *what, bool quiet)
{
    struct progress *p = quiet || !isatty(STDERR_FILENO) ? NULL : calloc(1, sizeof *p);

    if (!p)
        return NULL;
    pthread_mutex_init(&p->lock, NULL);
    p->what = what;
    p->start_ns = now_ns();
    p->drawn_ns = p->start_ns;
    return p;
}

static unsigned columns(void)
{
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 10 ? w.ws_col : 80;
}

static void draw(struct progress *p, uint64_t now)
{
    double s = (double)(now - p->start_ns) / 1e9, rate = s > 0 ? (double)p->done / s : 0;
    char done[32], total[32], per_s[32], line[300], eta[40] = "";

    if (p->final && rate > 0 && p->total > p->done) {
        uint64_t left = (uint64_t)((double)(p->total - p->done) / rate);
        snprintf(eta, sizeof eta, "  %llu:%02llu left", (unsigned long long)left / 60, (unsigned long long)left % 60);
    }
    snprintf(line, sizeof line, "%s: %s of %s%s, %llu files, %s/s%s", p->what, cli_size(p->done, done),
             p->final ? "" : "at least ", cli_size(p->total, total), (unsigned long long)p->files,
             cli_size((uint64_t)rate, per_s), eta);
    fprintf(stderr, "\r\033[K%.*s", (int)columns() - 1, line);
    p->drawn = true;
    p->drawn_ns = now;
}

void progress_total(struct progress *p, uint64_t bytes, bool final)
{
    if (!p)
        return;
    scoped_lock(&p->lock);
    p->total = bytes;
    p->final = final;
}

void progress_add(struct progress *p, uint64_t bytes, uint64_t files)
{
    uint64_t now;

    if (!p)
        return;
    scoped_lock(&p->lock);
    p->done += bytes;
    p->files += files;
    now = now_ns();
    if (now - p->drawn_ns >= REDRAW_NS)
        draw(p, now);
}

void progress_free(struct progress *p)
{
    if (!p)
        return;
    if (p->drawn)
        fputs("\r\033[K", stderr);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
