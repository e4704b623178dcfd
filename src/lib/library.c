/* libpenstock.so: the public API with the engines that its URLs can name. */
#include "local/local_store.h"
#include "remote/remote_store.h"

/* Before any thread of the program can call the library. */
__attribute__((constructor)) static void register_engines(void)
{
    pst_backend_register(&pst_local_backend);
    pst_backend_register(&pst_remote_backend);
    pst_backend_register(&pst_remote_unix_backend);
}
