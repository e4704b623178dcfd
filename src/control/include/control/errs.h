/*
 * Errors at the gRPC edge (contract 9). A failed call ends with a gRPC status whose details read "ENOENT: text" and the
 * trailing metadata `penstock-errno: ENOENT`. The name is what counts; docs/control-api.md has the table.
 */
#ifndef CONTROL_ERRS_H
#define CONTROL_ERRS_H

/* gRPC's status codes, by their numbers. */
enum rpc_code {
    RPC_OK = 0,
    RPC_CANCELLED = 1,
    RPC_UNKNOWN = 2,
    RPC_INVALID_ARGUMENT = 3,
    RPC_DEADLINE_EXCEEDED = 4,
    RPC_NOT_FOUND = 5,
    RPC_ALREADY_EXISTS = 6,
    RPC_PERMISSION_DENIED = 7,
    RPC_RESOURCE_EXHAUSTED = 8,
    RPC_FAILED_PRECONDITION = 9,
    RPC_ABORTED = 10,
    RPC_OUT_OF_RANGE = 11,
    RPC_UNIMPLEMENTED = 12,
    RPC_INTERNAL = 13,
    RPC_UNAVAILABLE = 14,
    RPC_DATA_LOSS = 15,
    RPC_UNAUTHENTICATED = 16,
};

#define ERRS_METADATA "penstock-errno"

/* Status code for 0 or -errno; RPC_INTERNAL for an errno without a row. */
enum rpc_code errs_code(int err);
/* "NOT_FOUND"; "?" for a number that is none. */
const char *errs_code_name(enum rpc_code code);
/* Name on the wire for -errno: err_name's where the table has a row, else "EIO". 0: "". */
const char *errs_name(int err);
/* -errno for a name on the wire; "" or NULL: 0; a name without a row: -EIO. */
int errs_from_name(const char *name);
/* -errno for a status that carries no name: made by gRPC itself or by something between. RPC_OK: 0. */
int errs_from_code(enum rpc_code code);
/* All rows, for the table's test and documentation: 0 and *ret_err -errno, or -ENOENT past the end. */
int errs_row(unsigned i, int *ret_err);

#endif
