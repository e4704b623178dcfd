/* An engine without a data path: what open needs until its files are in the build (they replace this one). */
#include "local.h"

int data_open(struct engine *e)
{
    (void)e;
    return 0;
}

void data_close(struct engine *e)
{
    (void)e;
}

void data_stats(struct engine *e, pst_stat_fn fn, void *user)
{
    (void)e, (void)fn, (void)user;
}

int data_check(struct engine *e, struct check *c)
{
    (void)e, (void)c;
    return 0;
}
