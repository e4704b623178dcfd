/* A session on a server for the calls that the public API does not have: status, metrics, scrub. */
#ifndef CLI_SESSION_H
#define CLI_SESSION_H

#include "cli.h"

#include "control/rpc.h"
#include "penstock/v1/status.pb-c.h"

struct cli_session;
/* NULL, with a message printed: *ret_exit is the exit code. */
struct cli_session *cli_session_open(const struct cli_url *u, const struct cli_conn *k, int *ret_exit);
void cli_session_close(struct cli_session *s); /* accepts NULL */
/* Messages of the calls that follow name this as well as the server. */
void cli_session_about(struct cli_session *s, const char *thing);
ProtobufCBinaryData cli_session_id(struct cli_session *s);
struct rpc_channel *cli_session_channel(struct cli_session *s);
/* One call: packs `in`, unpacks the reply by its descriptor; NULL with a message printed. Freed by the caller. */
ProtobufCMessage *cli_call(struct cli_session *s, const char *path, const ProtobufCMessage *in,
                           const ProtobufCMessageDescriptor *out, int *ret_exit);

#endif
