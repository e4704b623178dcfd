/*
 * A real daemon in this process for clients that send what no correct one sends (raw_client.h): two sessions, a file,
 * and the daemon's counters. For cmocka: start_daemon and stop_daemon around a group, set_up and tear_down around a
 * test.
 */
#ifndef TESTS_RAW_DAEMON_H
#define TESTS_RAW_DAEMON_H

#include "raw_client.h"

#include "control/tls.h"

#define FILE_BYTES (64u << 10)

extern const char *daemon_filter; /* of the daemon that is started; NULL: none */
extern const char *daemon_agent_filters[3]; /* of the agent alone, the lowest first */
extern const char *daemon_config; /* YAML, besides what start_daemon sets; NULL: none */
extern const char *daemon_agent_config; /* the same of an agent; NULL: daemon_config */
extern const char *daemon_cache;        /* an agent's; NULL: none */
extern bool daemon_export;        /* it takes memory, at export_path */
extern bool daemon_third;         /* the agent lets clients connect to the server */
extern bool daemon_agent;         /* it is an agent, with the server behind it in this process too */
extern char export_path[100];
extern char addr[64], token[TOKEN_BYTES];
extern char behind_addr[64], behind_token[TOKEN_BYTES]; /* of an agent's server */
extern char behind_file[100], behind_setting[120];      /* where that token is, and a tenant's setting that says so */
extern struct raw alice, bob;
extern struct raw_conn conn; /* alice's, new for each test, with `whole` bound as 0 */
extern uint64_t ino;         /* a file of FILE_BYTES, full of 'f' at the start of each test; conn.mem is full of 'm' */
extern struct cap whole;     /* for all of it */

int start_daemon(void **state);
int stop_daemon(void **state);
/* Ends the agent's server and starts it anew, at the same address. */
int restart_behind(void);
int set_up(void **state);
int tear_down(void **state);

double metric(const char *name); /* a counter of the metrics page */
double refused(const char *reason);
double bytes_moved(void);
bool all(const uint8_t *p, size_t n, uint8_t c);
/* Neither side has a byte of the other: the file is read anew, over another connection. */
void assert_nothing_moved(void);

#endif
