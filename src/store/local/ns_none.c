/* An engine without a namespace: what open needs until its files are in the build (they replace this one). */
#include "local.h"

int ns_open(struct engine *e, struct ns **ret)
{
    (void)e, (void)ret;
    return 0;
}

void ns_close(struct engine *e, struct ns *ns)
{
    (void)e, (void)ns;
}

int ns_txn_begin(struct txn *t, struct ns_txn *n)
{
    (void)t, (void)n;
    return 0;
}

void ns_txn_end(struct txn *t, struct ns_txn *n, bool committed)
{
    (void)t, (void)n, (void)committed;
}

void ns_stats(struct engine *e, pst_stat_fn fn, void *user)
{
    (void)e, (void)fn, (void)user;
}

int ns_check(struct engine *e, struct check *c)
{
    (void)e, (void)c;
    return 0;
}
