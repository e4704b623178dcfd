#include "ns.h"
int ns_check(struct engine *e, struct check *c)
{
    (void)e, (void)c;
    return 0;
}
