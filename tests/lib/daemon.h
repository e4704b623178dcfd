/* A penstockd for tests: `penstock serve --dev` in a folder of its own, on ports that stay the same over restarts. */
#ifndef TESTS_DAEMON_H
#define TESTS_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define DAEMON_ARGS_MAX 16

struct daemon {
    const char *program;
    char dir[64];      /* everything of it: store, run folder, log */
    char base[80];     /* "penstock://127.0.0.1:PORT/" */
    int port, data_port;
    pid_t pid;
    pid_t backend;     /* with PENSTOCK_TEST_AGENT: the server behind it, and its port */
    int backend_port, backend_data_port;
    struct proxy *proxy;                   /* with PENSTOCK_TEST_AGENT=proxy: between the two */
    const char *args[DAEMON_ARGS_MAX + 1]; /* more flags; NULL ends them */
};

/*
 * Starts it; args: more flags, ended by NULL (may be NULL). Without --provider among them the environment's
 * PENSTOCK_TEST_PROVIDER is given, so that every test can run over each of libfabric's providers. Sets PENSTOCK_RUN_DIR
 * for this process. With PENSTOCK_TEST_AGENT it is an agent, in front of a server that lives until daemon_done, and
 * with PENSTOCK_TEST_CACHE=SIZE one with such a cache. With PENSTOCK_TEST_EXPORT it takes memory (data.export_listen),
 * which PENSTOCK_PLACEMENT=exported then asks clients for. An agent with PENSTOCK_TEST_THIRD lets clients connect to
 * its server (data.third_party), as PENSTOCK_PLACEMENT=third-party demands. False: see the log.
 */
bool daemon_start(struct daemon *d, const char *program, const char *const *args);
/* An agent in front of a daemon that runs, and goes on running without it. args: as above. */
bool daemon_agent_start(struct daemon *d, const struct daemon *server, const char *const *args);
/* With the same folder, ports and flags. */
bool daemon_again(struct daemon *d);
void daemon_kill(struct daemon *d);      /* SIGKILL */
int daemon_stop(struct daemon *d);       /* SIGTERM; the exit status */
int daemon_backend_stop(struct daemon *d);
void daemon_backend_kill(struct daemon *d); /* with an agent: the server behind it, and it again */
bool daemon_backend_again(struct daemon *d);
void daemon_done(struct daemon *d);      /* stops it, removes the folder */

long daemon_sockets(const struct daemon *d); /* that it has open; -1: it does not run */

/*
 * A proxy in front of the daemon's ports, on 127.0.0.2: cuts a connection at each n-th piece that the server sends
 * (n drawn from 1..every), dropping that piece. So requests are done and their answers lost. every 0: cuts nothing.
 */
struct proxy;
struct proxy *proxy_start(const struct daemon *d, unsigned every, unsigned seed);
void proxy_every(struct proxy *p, unsigned every);
unsigned proxy_cuts(struct proxy *p);
/* What clients send is thrown away from now on; off: and the connections on which that happened are cut. */
void proxy_swallow(struct proxy *p, bool on);
/*
 * What clients send is kept from now on (the bytes so far: proxy_kept). Off: the clients lose the connections on which
 * that happened, but the daemon gets the bytes only by proxy_deliver, as from a network that was slow.
 */
void proxy_keep(struct proxy *p, bool on);
unsigned proxy_kept(struct proxy *p);
void proxy_deliver(struct proxy *p);
void proxy_stop(struct proxy *p);

#endif
