/* Many connections, strangers and silence at a listener of src/fabric. */
#include "fab_node.h"
#include "fab_suite.h"

#include <sys/resource.h>
#include <sys/socket.h>

/* ---- strangers ---- */

static void echo(struct link *l, const void *msg, size_t len)
{
    node_answer(l, msg, len);
}

static uint32_t sockets_open(void)
{
    struct rlimit r;
    uint32_t n = 0;

    getrlimit(RLIMIT_NOFILE, &r);
    for (int fd = 0; fd < (int)r.rlim_cur && fd < 8192; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void stranger_server(const char *provider, int fd)
{
    static struct node n;
    uint32_t before;
    uint8_t go = 1;

    node_open(&n, provider, (struct fab_config){.half_open_ms = 700});
    n.message = echo;
    node_listen(&n);
    before = sockets_open();
    tell_addr(fd, &n);
    UNTIL(&n, n.closed == 1 && n.up == 1);
    tell(fd, &go, 1);
    /* The strangers say nothing and stay; they are cut off one after the other, and their descriptors come back. */
    UNTIL(&n, sockets_open() <= before);
    CHECK(n.nlinks == 1 && n.closed == 1);
    tell(fd, &go, 1);
    /* And the listener still serves. */
    UNTIL(&n, n.closed == 2);
    node_close(&n);
}

static void use_once(const char *provider, const struct node *addr)
{
    static struct node n;

    memset(&n, 0, sizeof n);
    node_open(&n, provider, (struct fab_config){0});
    n.addr = addr->addr;
    n.addr_len = addr->addr_len;
    node_connect(&n, NULL, 0);
    UNTIL(&n, n.up == 1);
    for (int i = 0; i < 50; i++) {
        node_send(&n.links[0], &i, sizeof i);
        UNTIL(&n, n.links[0].in == (uint64_t)i + 1);
    }
    fab_disconnect(n.links[0].c);
    UNTIL(&n, n.closed == 1);
    node_close(&n);
}

static void stranger_client(const char *provider, int fd)
{
    static struct node n;
    static int socks[2048];
    int count = 2000;
    uint8_t go, junk[300] = {0};

    hear_addr(fd, &n);
    for (int i = 0; i < count; i++) {
        socks[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(socks[i] >= 0);
        CHECK(!connect(socks[i], (struct sockaddr *)&n.addr, n.addr_len));
        /* Most say nothing; some send a piece of a request, some junk, some go away at once. */
        if (i % 100 == 1)
            CHECK(send(socks[i], "\1", 1, MSG_NOSIGNAL) == 1);
        else if (i % 100 == 2)
            (void)!send(socks[i], junk, sizeof junk, MSG_NOSIGNAL);
        else if (i % 100 == 3)
            (void)!send(socks[i], "\3\1\0\200\1\0\0\0\0\0\0\0\0\0\0\0", 16, MSG_NOSIGNAL);
        else if (i % 100 == 4)
            close(socks[i]);
    }
    use_once(provider, &n);
    hear(fd, &go, 1);
    hear(fd, &go, 1);
    use_once(provider, &n);
    for (int i = 0; i < count; i++)
        if (i % 100 != 4)
            close(socks[i]);
}

void half_open_connections_neither_block_nor_stay(void **state)
{
    if (provider_is_rdma(*state))
        skip(); /* of TCP listeners only */
    assert_true(run_pair(__func__, *state, stranger_server, stranger_client));
}

/* ---- a server that accepts and never answers ---- */

static void silent_server(const char *provider, int fd)
{
    static struct node n;
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint8_t done;

    if (provider_is_rdma(provider)) { /* a request to connect that the program does not take */
        node_open(&n, provider, (struct fab_config){0});
        node_listen(&n);
        tell_addr(fd, &n);
        hear(fd, &done, 1);
        node_close(&n);
        tell(fd, &done, 1);
        return;
    }
    n.addr_len = sizeof in;
    CHECK(s >= 0 && !bind(s, (struct sockaddr *)&in, sizeof in) && !listen(s, 8));
    CHECK(!getsockname(s, (struct sockaddr *)&n.addr, &n.addr_len));
    tell_addr(fd, &n);
    hear(fd, &done, 1);
    close(s);
    tell(fd, &done, 1);
}

static void patient_client(const char *provider, int fd)
{
    static struct node n;
    uint8_t done = 1;

    node_open(&n, provider, (struct fab_config){.connect_ms = provider_is_rdma(provider) ? 3000 : 200});
    hear_addr(fd, &n);
    node_connect(&n, NULL, 0);
    UNTIL(&n, n.closed == 1);
    CHECK(n.links[0].err == -ETIMEDOUT);
    tell(fd, &done, 1);
    /* Nobody listens there any more. */
    hear(fd, &done, 1);
    node_connect(&n, NULL, 0);
    UNTIL(&n, n.closed == 2);
    /* net of libfabric 1.17 loses the reason. */
    CHECK(n.links[1].err == -ECONNREFUSED || n.links[1].err == -ECONNRESET);
    node_close(&n);
}

void a_connect_without_answer_is_given_up(void **state)
{
    assert_true(run_pair(__func__, *state, silent_server, patient_client));
}

/* ---- many idle connections ---- */

/* A device's completion queue has a size, and so a number of connections that it bears. */
static uint32_t crowd(const char *provider)
{
    return provider_is_rdma(provider) ? 100 : 500;
}

static size_t rss_kib(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long pages = 0;

    CHECK(f && fscanf(f, "%*d %ld", &pages) == 1);
    fclose(f);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE) / 1024;
}

static void crowd_server(const char *provider, int fd)
{
    static struct node n;
    uint32_t count = crowd(provider);
    size_t before;

    node_open(&n, provider, (struct fab_config){0});
    n.message = echo;
    node_listen(&n);
    tell_addr(fd, &n);
    before = rss_kib();
    UNTIL(&n, n.up == count);
    printf("%s, %u idle connections: %zu KiB each\n", provider, count, (rss_kib() - before) / count);
    UNTIL(&n, n.closed == count);
    for (uint32_t i = 0; i < count; i++)
        CHECK(n.links[i].err == 0 && n.links[i].in == 1);
    node_close(&n);
}

static void crowd_client(const char *provider, int fd)
{
    static struct node n;
    uint32_t count = crowd(provider);

    node_open(&n, provider, (struct fab_config){.credits = 4});
    hear_addr(fd, &n);
    for (uint32_t i = 0; i < count; i++)
        node_connect(&n, NULL, 0);
    UNTIL(&n, n.up == count);
    for (uint32_t i = 0; i < count; i++) {
        node_send(&n.links[i], &i, sizeof i);
        UNTIL(&n, n.links[i].in == 1);
    }
    for (uint32_t i = 0; i < count; i++)
        fab_disconnect(n.links[i].c);
    UNTIL(&n, n.closed == count);
    node_close(&n);
}

void many_connections_are_served(void **state)
{
    assert_true(run_pair(__func__, *state, crowd_server, crowd_client));
}

/* ---- what is not there ---- */

static void missing(const char *provider, int fd)
{
    struct fab_config rdma = {.require_rdma = true}, both = {.provider = provider, .require_rdma = true},
                      none = {.provider = "nosuch"},
                      automatic = {.provider = provider_is_rdma(provider) ? provider : "auto"};
    struct fab *f = NULL;
    char err[256] = "";
    int r;

    (void)fd;
    CHECK(!fab_open(&automatic, &f, err, sizeof err)); /* first: it settles whose verbs there are */
    CHECK(fab_info(f)->rdma || !strcmp(fab_info(f)->provider, "tcp"));
    CHECK(!strncmp(fab_info(f)->library, "libfabric ", 10));
    fab_close(f);
    r = fab_open(&rdma, &f, err, sizeof err);
    CHECK(r == -ENODEV ? strstr(err, "verbs") != NULL : !r && fab_info(f)->rdma);
    if (!r)
        fab_close(f);
    if (!provider_is_rdma(provider)) {
        CHECK(fab_open(&both, &f, err, sizeof err) == -ENODEV && strstr(err, provider) && strstr(err, "verbs"));
    }
    CHECK(fab_open(&none, &f, err, sizeof err) == -ENODEV && strstr(err, "nosuch"));
}

/* A process that has the system's verbs does not get uroce's, and is told so. */
static void both_verbs(const char *provider, int fd)
{
    struct fab_config first = {.provider = provider}, uroce = {.provider = "uroce"};
    struct fab *f = NULL;
    char err[256] = "";

    (void)fd;
    CHECK(!fab_open(&first, &f, err, sizeof err));
    CHECK(!strcmp(fab_info(f)->verbs, strcmp(provider, "uroce") ? "system" : "uroce"));
    fab_close(f);
    if (!strcmp(provider, "uroce"))
        return;
    CHECK(fab_open(&uroce, &f, err, sizeof err) == -EBUSY && strstr(err, "one verbs library"));
}

void one_process_has_one_verbs_library(void **state)
{
    assert_true(run_pair(__func__, *state, both_verbs, both_verbs));
}

void required_rdma_that_is_missing_is_named(void **state)
{
    assert_true(run_pair(__func__, *state, missing, missing));
}
