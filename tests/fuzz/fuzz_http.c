/*
 * Requests to the metrics page, over a connection each. Whatever comes, the answer is a response of HTTP or none, and
 * only a whole GET or HEAD of /metrics gets figures.
 */
#include "fuzz.h"

#include "data.h"
#include "memstore.h"

#include "base/rng.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static const struct srv_config no_token;
static struct srv srv = {.cfg = &no_token, .ntenants = 1};
static struct metrics *page;

static void start(void)
{
    struct ctl_listen listen = {.addr = "127.0.0.1:0"};
    struct ctl_tenant tenant = {.name = "default"};
    struct ctl_config cfg = {.listen = &listen, .nlisten = 1, .tenants = &tenant, .ntenants = 1};
    struct pst_store *st;
    char err[300];

    signal(SIGPIPE, SIG_IGN);
    pst_backend_register(&memstore_backend);
    CHECK(!pst_backend_open("mem:", NULL, 0, &st, err, sizeof err));
    tenant.st = st;
    CHECK(!ctl_server_start(&cfg, &srv.ctl, err, sizeof err));
    CHECK(!metrics_start(&srv, "127.0.0.1:0", &page, err, sizeof err));
}

/*
 * What the server says before it ends the connection or is silent for a time, as a string: after bytes that are no
 * request it waits, up to its own time-out, for more of them.
 */
static size_t ask(const void *data, size_t size, char *answer, size_t cap, int silent_ms)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)metrics_port(page)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t n = 0;
    ssize_t k = 1;

    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof a));
    for (size_t sent = 0; sent < size && k > 0; sent += k > 0 ? (size_t)k : 0)
        k = send(fd, (const char *)data + sent, size - sent, 0);
    shutdown(fd, SHUT_WR);
    do {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        k = poll(&p, 1, silent_ms) == 1 ? recv(fd, answer + n, cap - 1 - n, 0) : 0;
        n += k > 0 ? (size_t)k : 0;
    } while (k > 0 && n < cap - 1);
    close(fd);
    answer[n] = 0;
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char good[] = "GET /healthz HTTP/1.0\r\n\r\n";
    static char answer[1 << 20];
    static unsigned count;
    size_t n;

    if (!page)
        start();
    n = ask(data, size, answer, sizeof answer, 5);
    CHECK(n == 0 || !strncmp(answer, "HTTP/1.", 7));
    CHECK(!strstr(answer, "penstock_build_info") || memmem(data, size, "metrics", 7));
    if (++count % 64 == 0) /* it still serves others */
        CHECK(ask(good, strlen(good), answer, sizeof answer, 60000) && strstr(answer, " 200 "));
    return 0;
}

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap)
{
    static const char *const lines[] = {"GET /metrics HTTP/1.1\r\n", "HEAD /metrics HTTP/1.0\r\n",
                                        "GET /healthz HTTP/1.1\r\n", "GET /x?a=b&c=%41 HTTP/1.1\r\n",
                                        "POST /metrics HTTP/1.1\r\n", "OPTIONS * HTTP/1.1\r\n"};
    static const char *const headers[] = {"Host: x\r\n", "Connection: close\r\n", "Accept-Encoding: gzip\r\n",
                                          "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n",
                                          "Cookie: a=b; c\r\n", "Expect: 100-continue\r\n",
                                          "Range: bytes=0-5\r\n"};
    struct rng r;
    size_t len;

    rng_seed(&r, n);
    len = (size_t)snprintf((char *)buf, cap, "%s", lines[rng_below(&r, ARRAY_SIZE(lines))]);
    for (size_t i = 0; i < ARRAY_SIZE(headers); i++)
        if (rng_below(&r, 3) == 0)
            len += (size_t)snprintf((char *)buf + len, cap - len, "%s", headers[i]);
    len += (size_t)snprintf((char *)buf + len, cap - len, "\r\n%s", rng_below(&r, 2) ? "5\r\nhello\r\n0\r\n\r\n" : "");
    return len;
}
