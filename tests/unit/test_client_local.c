/* The cases of the public API over the embedded engine. */
#include "api_cases.h"
#include "local/local_store.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    char dir[] = "/tmp/pst-client-XXXXXX", base[64], clean[64];
    int failed;

    pst_backend_register(&pst_local_backend);
    if (!mkdtemp(dir))
        return 1;
    snprintf(base, sizeof base, "local:%s?", dir);
    api_base = base;
    failed = api_run_cases();
    snprintf(clean, sizeof clean, "rm -rf %s", dir);
    if (system(clean) != 0)
        return 1;
    return failed;
}
