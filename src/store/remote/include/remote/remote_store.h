/* A store on another machine (or in another process): penstock://host[:port], penstock+unix:///path. */
#ifndef REMOTE_REMOTE_STORE_H
#define REMOTE_REMOTE_STORE_H

#include "store/store.h"

/*
 * Options: token_file, ca_file, cert_file, key_file, provider, purpose (texts), insecure, require_rdma, origin (1 or 0;
 * origin: fail where the credential may not pass request ids on), timeout_ms, arena_mib (registered buffer memory of
 * each data queue, 16..1024; 32).
 */
extern const struct pst_backend pst_remote_backend;      /* penstock://host[:port] */
extern const struct pst_backend pst_remote_unix_backend; /* penstock+unix:///path */

#endif
