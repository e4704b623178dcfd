/* top: a live view in a terminal, or one view as text or JSON. */
#include "cli.h"
#include "status.h"
#include "top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>

/* ---- text ---- */

/* Writes lines of at most `cols` columns, `rows` of them. */
struct page {
    FILE *f;
    unsigned rows, cols, used;
};

static void line(struct page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line(struct page *p, const char *fmt, ...)
{
    char buf[512];
    va_list ap;

    if (p->rows && p->used >= p->rows)
        return;
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    /* Names come from a server: nothing of them reaches the terminal but printable characters. */
    for (char *c = buf; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e)
            *c = '?';
    if (p->cols && strlen(buf) > p->cols)
        buf[p->cols] = 0;
    fprintf(p->f, "%s%s\n", buf, p->cols ? "\033[K" : "");
    p->used++;
}

static double num(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "-";
}

static const char *size_of(double v, char buf[32])
{
    return cli_size(v > 0 ? (uint64_t)v : 0, buf);
}

static const char *time_of(double s, char buf[32])
{
    if (s <= 0)
        snprintf(buf, 32, "-");
    else if (s < 1e-3)
        snprintf(buf, 32, "%.0f us", s * 1e6);
    else if (s < 1)
        snprintf(buf, 32, "%.1f ms", s * 1e3);
    else
        snprintf(buf, 32, "%.2f s", s);
    return buf;
}

static void print_latency(struct page *p, const json_t *list)
{
    char a[32], b[32], c[32];
    const json_t *l;
    size_t i;

    line(p, "%-10s %10s %10s %10s %10s", "OPERATION", "PER S", "P50", "P90", "P99");
    json_array_foreach(list, i, l)
        line(p, "%-10s %10.0f %10s %10s %10s", text(l, "op"), num(l, "per_s"), time_of(num(l, "p50"), a),
             time_of(num(l, "p90"), b), time_of(num(l, "p99"), c));
}

/* An empty line before a table; false: it has no rows, and is left out. */
static bool begin_table(struct page *p, const json_t *list)
{
    if (json_array_size(list) == 0)
        return false;
    line(p, "%s", "");
    return true;
}

static void print_tenants(struct page *p, const json_t *list)
{
    char a[32], b[32];
    const json_t *t;
    size_t i;

    if (!begin_table(p, list))
        return;
    line(p, "%-16s %10s %10s %6s %10s %8s %8s %10s", "TENANT", "PER S", "BYTES/S", "SHARE", "THROTTLED", "WAITING",
         "RUNNING", "WAIT");
    json_array_foreach(list, i, t)
        line(p, "%-16.16s %10.0f %10s %5.0f%% %10.0f %8.0f %8.0f %10s", text(t, "tenant"), num(t, "operations_per_s"),
             size_of(num(t, "bytes_per_s"), a), 100 * num(t, "share"), num(t, "throttled_per_s"), num(t, "waiting"),
             num(t, "running"), time_of(num(t, "wait"), b));
}

static void print_filters(struct page *p, const json_t *list)
{
    char a[32], b[32];
    const json_t *x;
    size_t i;

    if (!begin_table(p, list))
        return;
    line(p, "%-40s %10s %10s %8s %10s", "FILTER", "IN/S", "OUT/S", "CPUS", "S/GIB");
    json_array_foreach(list, i, x)
        line(p, "%-40.40s %10s %10s %8.2f %10.2f", text(x, "filter"), size_of(num(x, "bytes_in_per_s"), a),
             size_of(num(x, "bytes_out_per_s"), b), num(x, "cost"), num(x, "seconds_per_gib"));
}

static void print_caches(struct page *p, const json_t *list)
{
    char a[32], b[32], c[32], d[32], e[32];
    const json_t *x;
    size_t i;

    if (!begin_table(p, list))
        return;
    line(p, "%-16s %10s %10s %6s %10s %10s %10s", "CACHE", "HIT/S", "MISS/S", "HITS", "EVICTED/S", "USED", "MEMORY");
    json_array_foreach(list, i, x)
        line(p, "%-16.16s %10s %10s %5.0f%% %10s %10s %10s", text(x, "tenant"), size_of(num(x, "hit_bytes_per_s"), a),
             size_of(num(x, "miss_bytes_per_s"), b), 100 * num(x, "hit_share"),
             size_of(num(x, "evicted_bytes_per_s"), e), size_of(num(x, "used_bytes"), c),
             size_of(num(x, "memory_bytes"), d));
}

static void print_connections(struct page *p, const json_t *list)
{
    char a[32], b[32];
    const json_t *c;
    size_t i;

    if (!begin_table(p, list))
        return;
    line(p, "%-8s %-22s %-10s %-5s %-12s %10s %10s %10s", "PURPOSE", "PEER", "PROVIDER", "RDMA", "PLACEMENT", "PER S",
         "WRITTEN/S", "READ/S");
    json_array_foreach(list, i, c)
        line(p, "%-8.8s %-22.22s %-10.10s %-5s %-12.12s %10.0f %10s %10s", text(c, "purpose"), text(c, "peer"),
             text(c, "provider"), json_is_true(json_object_get(c, "rdma")) ? "yes" : "no", text(c, "placement"),
             num(c, "operations_per_s"), size_of(num(c, "write_bytes_per_s"), a),
             size_of(num(c, "read_bytes_per_s"), b));
}

void top_print(FILE *f, const json_t *v, unsigned rows, unsigned cols)
{
    struct page p = {f, rows, cols, 0};
    char a[32], b[32];

    line(&p, "%s  %s %s  up %.0f s  %.0f sessions", text(v, "url"), text(v, "role"), text(v, "version"),
         num(v, "uptime"), num(v, "sessions"));
    line(&p, "read %s/s  written %s/s  data %.0f/s  control %.0f/s  errors %.0f/s",
         size_of(num(v, "read_bytes_per_s"), a), size_of(num(v, "write_bytes_per_s"), b), num(v, "operations_per_s"),
         num(v, "control_per_s"), num(v, "errors_per_s"));
    line(&p, "%s", "");
    print_latency(&p, json_object_get(v, "latency"));
    print_tenants(&p, json_object_get(v, "tenants"));
    print_filters(&p, json_object_get(v, "filters"));
    print_caches(&p, json_object_get(v, "caches"));
    print_connections(&p, json_object_get(v, "connections"));
}

/* ---- the terminal ---- */

#define ENTER "\033[?1049h\033[?25l\033[2J" /* the other screen, without a cursor */
#define LEAVE "\033[?25h\033[?1049l"

static struct termios saved;
static volatile sig_atomic_t shown;

static void put(const char *s, size_t n)
{
    if (write(STDOUT_FILENO, s, n) < 0)
        shown = shown; /* nobody looks: the next poll of the input tells */
}

/* Async-signal-safe. */
static void leave_screen(void)
{
    if (!shown)
        return;
    shown = 0;
    put(LEAVE, sizeof LEAVE - 1);
    tcsetattr(STDIN_FILENO, TCSANOW, &saved);
}

/* At once, whatever call is under way. */
static void on_end(int sig)
{
    (void)sig;
    leave_screen();
    _exit(EXIT_OK);
}

static void on_resize(int sig)
{
    (void)sig;
}

static int enter_screen(void)
{
    struct sigaction end = {.sa_handler = on_end}, resize = {.sa_handler = on_resize};
    struct termios t;

    if (tcgetattr(STDIN_FILENO, &saved) < 0)
        return -errno;
    sigaction(SIGINT, &end, NULL);
    sigaction(SIGTERM, &end, NULL);
    sigaction(SIGHUP, &end, NULL);
    sigaction(SIGWINCH, &resize, NULL);
    t = saved;
    t.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    shown = 1;
    tcsetattr(STDIN_FILENO, TCSANOW, &t);
    put(ENTER, sizeof ENTER - 1);
    return 0;
}

static void draw(const json_t *view)
{
    struct winsize w = {0};
    char *buf = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&buf, &n);

    if (!f)
        return;
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
    fputs("\033[H", f);
    /* The last row stays empty: a newline there would move all up. */
    top_print(f, view, w.ws_row > 1 ? w.ws_row - 1u : 23, w.ws_col ? w.ws_col : 80);
    fputs("\033[J", f);
    fclose(f);
    put(buf, n);
    free(buf);
}

/* Until `until_ns`; -EINTR: the window has another size; 1: the user has had enough. */
static int wait_for_key(uint64_t until_ns)
{
    for (;;) {
        struct pollfd p = {STDIN_FILENO, POLLIN, 0};
        uint64_t now = now_ns();
        char c;
        int r;
        if (now >= until_ns)
            return 0;
        r = poll(&p, 1, (int)((until_ns - now) / NSEC_PER_MSEC) + 1);
        if (r < 0)
            return -errno;
        if (r > 0 && (read(STDIN_FILENO, &c, 1) <= 0 || c == 'q' || c == 'Q'))
            return 1;
    }
}

/* ---- looks ---- */

static int look(const struct cli_url *u, const struct cli_conn *k, struct top_look *ret)
{
    int code = EXIT_OK;
    struct top_look l = {.status = status_json(u, k, &code)};

    if (l.status)
        l.metrics = metrics_json(u, k, &code);
    l.at_ns = now_ns();
    if (l.metrics) {
        *ret = l;
        return EXIT_OK;
    }
    top_look_free(&l);
    return code ? code : EXIT_FAILED;
}

static int live(const struct cli_url *u, const struct cli_conn *k, uint64_t every_ns, struct top_look *a)
{
    struct top_look b = {0};
    json_t *view = NULL;
    int code = EXIT_OK, r = enter_screen();
    /* The first view comes soon, of a short time. */
    uint64_t next = now_ns() + min_u64(every_ns, 200 * NSEC_PER_MSEC);

    if (r < 0)
        return cli_fail(r, "the terminal");
    for (;;) {
        r = wait_for_key(next);
        if (r == 1)
            break;
        if (r == -EINTR) {
            if (view)
                draw(view);
            continue;
        }
        code = look(u, k, &b);
        if (code)
            break;
        json_decref(view);
        view = top_view(a, &b);
        draw(view);
        top_look_free(a);
        *a = b;
        next = now_ns() + every_ns;
    }
    leave_screen();
    if (code)
        cli_error("%s does not answer any more", u->server);
    json_decref(view);
    return code;
}

static int once(const struct cli_url *u, const struct cli_conn *k, uint64_t every_ns, struct top_look *a, bool json)
{
    const struct timespec t = {(time_t)(every_ns / NSEC_PER_SEC), (long)(every_ns % NSEC_PER_SEC)};
    struct top_look b = {0};
    json_t *view;
    int code;

    nanosleep(&t, NULL);
    code = look(u, k, &b);
    if (code)
        return code;
    view = top_view(a, &b);
    top_look_free(&b);
    if (json)
        return cli_json(view);
    top_print(stdout, view, 0, 0);
    json_decref(view);
    return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

static int run_top(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    bool json = false, single = false;
    uint64_t ms = 1000;
    const struct cli_opt opts[] = {
        {0, "json", OPT_FLAG, &json, NULL, "one view, as JSON", NULL},
        {0, "once", OPT_FLAG, &single, NULL, "one view, as text", NULL},
        {0, "interval", OPT_UINT, &ms, "MS", "between two looks; default 1000", NULL},
        CLI_SERVER_OPTS(k),
        {0},
    };
    struct cli_url u;
    struct top_look a = {0};
    int code;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    if (cli_url(argv[first], 0, &u) < 0)
        return EXIT_USAGE;
    if (!cli_is_remote(&u))
        return cli_usage(cmd, "%s is no server: top looks at a daemon", argv[first]);
    if (ms < 50 || ms > 3600000)
        return cli_usage(cmd, "--interval: from 50 to 3600000 milliseconds");
    if (!json && !single && (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)))
        return cli_usage(cmd, "input and output are no terminal: --once shows one view, --json is for programs");
    code = look(&u, &k, &a);
    if (code)
        return code;
    code = json || single ? once(&u, &k, ms * NSEC_PER_MSEC, &a, json) : live(&u, &k, ms * NSEC_PER_MSEC, &a);
    top_look_free(&a);
    return code;
}

const struct cli_cmd cmds_top[] = {
    {"top", "URL", "Shows live what a server does: tenants, rates, latencies, connections, filters", NULL, run_top},
    {0},
};
