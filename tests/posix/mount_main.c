/* `penstock mount` and nothing else, for tests of the mount's own. */
#include "fuse_mount/mount.h"
#include "local/local_store.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"foreground", 0, 0, 'f'}, {"no-supervise", 0, 0, 'n'}, {"durability", 1, 0, 'd'}, {"attr-timeout", 1, 0, 'a'},
        {"entry-timeout", 1, 0, 'e'}, {"log-file", 1, 0, 'l'}, {"read-only", 0, 0, 'r'}, {"threads", 1, 0, 't'}, {"create", 0, 0, 'c'}, {0},
    };
    static const struct pst_option create = {"create", "1"};
    struct fuse_mount_opts o;
    char err[600] = "";
    int c, r;

    fuse_mount_opts_init(&o);
    pst_backend_register(&pst_local_backend);
    if (argc < 2 || strcmp(argv[1], "mount"))
        return 2;
    argc--;
    argv++;
    while ((c = getopt_long(argc, argv, "fo:", longs, NULL)) != -1) {
        switch (c) {
        case 'f':
            o.foreground = true;
            break;
        case 'n':
            o.supervise = false;
            break;
        case 'd':
            o.durability_fsync = !strcmp(optarg, "fsync");
            break;
        case 'a':
            o.attr_timeout = strtod(optarg, NULL);
            break;
        case 'e':
            o.entry_timeout = strtod(optarg, NULL);
            break;
        case 'l':
            o.log_file = optarg;
            break;
        case 'r':
            o.read_only = true;
            break;
        case 't':
            o.max_threads = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'c':
            o.client.create = true;
            o.client.store_opts = &create;
            o.client.nstore_opts = 1;
            break;
        case 'o':
            o.mount_options = optarg;
            break;
        default:
            return 2;
        }
    }
    if (optind + 2 != argc)
        return 2;
    r = fuse_mount_run(argv[optind], argv[optind + 1], &o, err, sizeof(err));
    if (r)
        fprintf(stderr, "%s\n", err);
    return r ? 1 : 0;
}
