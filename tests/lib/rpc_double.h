/*
 * The server's side of control/rpc.h without gRPC: a test calls a method of a control server in its own thread and sees
 * what comes of it. Linked before the control library, it stands in for its gRPC wrapper.
 */
#ifndef TESTS_RPC_DOUBLE_H
#define TESTS_RPC_DOUBLE_H

#include "control/rpc.h"

/* What a method has done by its return. Its data is good until the next call. */
struct rpc_outcome {
    unsigned replies, messages, ends; /* of a unary call; of a stream; with a status */
    int err;                          /* of the end */
    const void *data;                 /* the last reply or message */
    size_t len;
};
/* The methods of the server that was started last; NULL past the last. */
const struct rpc_method *rpc_double_method(size_t i);
/* One message to a method, as from a client that goes away after it. */
struct rpc_outcome rpc_double_call(const struct rpc_method *m, const void *msg, size_t len);

#endif
