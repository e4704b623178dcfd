#include "control/errs.h"

#include "base/err.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

static const struct {
    int err;
    enum rpc_code code;
} rows[] = {
    {EPERM, RPC_PERMISSION_DENIED},
    {EACCES, RPC_PERMISSION_DENIED},
    {EROFS, RPC_FAILED_PRECONDITION},
    {ENOENT, RPC_NOT_FOUND},
    {ENXIO, RPC_NOT_FOUND},
    {ENODATA, RPC_NOT_FOUND},
    {ENODEV, RPC_NOT_FOUND},
    {EEXIST, RPC_ALREADY_EXISTS},
    {EINVAL, RPC_INVALID_ARGUMENT},
    {EBADF, RPC_INVALID_ARGUMENT},
    {ENAMETOOLONG, RPC_INVALID_ARGUMENT},
    {EBADMSG, RPC_INVALID_ARGUMENT},
    {EMSGSIZE, RPC_INVALID_ARGUMENT},
    {E2BIG, RPC_INVALID_ARGUMENT},
    {ERANGE, RPC_OUT_OF_RANGE},
    {EFBIG, RPC_OUT_OF_RANGE},
    {EOVERFLOW, RPC_OUT_OF_RANGE},
    {ENOTDIR, RPC_FAILED_PRECONDITION},
    {EISDIR, RPC_FAILED_PRECONDITION},
    {ENOTEMPTY, RPC_FAILED_PRECONDITION},
    {EBUSY, RPC_FAILED_PRECONDITION},
    {ELOOP, RPC_FAILED_PRECONDITION},
    {EXDEV, RPC_FAILED_PRECONDITION},
    {EPROTO, RPC_FAILED_PRECONDITION},
    {ETXTBSY, RPC_FAILED_PRECONDITION},
    {ENOTCONN, RPC_UNAVAILABLE},
    {ECONNREFUSED, RPC_UNAVAILABLE},
    {ECONNRESET, RPC_UNAVAILABLE},
    {EHOSTUNREACH, RPC_UNAVAILABLE},
    {ESHUTDOWN, RPC_UNAVAILABLE},
    {ENOSPC, RPC_RESOURCE_EXHAUSTED},
    {EDQUOT, RPC_RESOURCE_EXHAUSTED},
    {EMLINK, RPC_RESOURCE_EXHAUSTED},
    {EMFILE, RPC_RESOURCE_EXHAUSTED},
    {ENFILE, RPC_RESOURCE_EXHAUSTED},
    {EUSERS, RPC_RESOURCE_EXHAUSTED},
    {ENOMEM, RPC_RESOURCE_EXHAUSTED},
    {ENOBUFS, RPC_RESOURCE_EXHAUSTED},
    {EAGAIN, RPC_RESOURCE_EXHAUSTED},
    {ESTALE, RPC_UNAUTHENTICATED},
    {EKEYREJECTED, RPC_UNAUTHENTICATED},
    {EKEYREVOKED, RPC_PERMISSION_DENIED},
    {EKEYEXPIRED, RPC_PERMISSION_DENIED},
    {ENOKEY, RPC_PERMISSION_DENIED},
    {ENOLCK, RPC_UNIMPLEMENTED},
    {EOPNOTSUPP, RPC_UNIMPLEMENTED},
    {ENOSYS, RPC_UNIMPLEMENTED},
    {EPROTONOSUPPORT, RPC_UNIMPLEMENTED},
    {ECANCELED, RPC_CANCELLED},
    {EINTR, RPC_CANCELLED},
    {ETIMEDOUT, RPC_DEADLINE_EXCEEDED},
    {EIO, RPC_DATA_LOSS},
    {EUCLEAN, RPC_DATA_LOSS},
    {EILSEQ, RPC_DATA_LOSS},
    {EFAULT, RPC_INTERNAL},
};

/* What a bare status means: one that gRPC itself made, or another implementation of the server. */
static const int bare[] = {
    [RPC_OK] = 0,
    [RPC_CANCELLED] = ECANCELED,
    [RPC_UNKNOWN] = EIO,
    [RPC_INVALID_ARGUMENT] = EINVAL,
    [RPC_DEADLINE_EXCEEDED] = ETIMEDOUT,
    [RPC_NOT_FOUND] = ENOENT,
    [RPC_ALREADY_EXISTS] = EEXIST,
    [RPC_PERMISSION_DENIED] = EACCES,
    [RPC_RESOURCE_EXHAUSTED] = ENOBUFS, /* gRPC's own: a message over the size limit */
    [RPC_FAILED_PRECONDITION] = EBUSY,
    [RPC_ABORTED] = EAGAIN,
    [RPC_OUT_OF_RANGE] = ERANGE,
    [RPC_UNIMPLEMENTED] = EOPNOTSUPP,
    [RPC_INTERNAL] = EIO,
    [RPC_UNAVAILABLE] = ENOTCONN,
    [RPC_DATA_LOSS] = EIO,
    [RPC_UNAUTHENTICATED] = EACCES,
};

static const char *const code_names[] = {
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
};

enum rpc_code errs_code(int err)
{
    if (!err)
        return RPC_OK;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (rows[i].err == -err)
            return rows[i].code;
    return RPC_INTERNAL;
}

const char *errs_code_name(enum rpc_code code)
{
    return (size_t)code < ARRAY_SIZE(code_names) ? code_names[code] : "?";
}

const char *errs_name(int err)
{
    if (!err)
        return "";
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (rows[i].err == -err)
            return err_name(err);
    return "EIO";
}

int errs_from_name(const char *name)
{
    if (!name || !*name)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (!strcmp(err_name(rows[i].err), name))
            return -rows[i].err;
    /* Synonyms that other languages' tables use. */
    if (!strcmp(name, "EWOULDBLOCK"))
        return -EAGAIN;
    if (!strcmp(name, "ENOTSUP"))
        return -EOPNOTSUPP;
    return -EIO;
}

int errs_from_code(enum rpc_code code)
{
    return (size_t)code < ARRAY_SIZE(bare) ? -bare[code] : -EIO;
}

int errs_row(unsigned i, int *ret_err)
{
    if (i >= ARRAY_SIZE(rows))
        return -ENOENT;
    *ret_err = -rows[i].err;
    return 0;
}
