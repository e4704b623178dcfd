/* Which devices and addresses there are: as the environment says, and what is said about each mistake in it. */
#include "base/util.h"
#include "lib/netns.h"
#include "uroce/uroce.h"

#include <errno.h>
#include <net/if.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct netns_pair ns;

static int unset_all(void **state)
{
    (void)state;
    unsetenv("UROCE_DEVICES");
    unsetenv("UROCE_ADDRESS");
    return 0;
}

static int list(struct uroce_device_info *ret, char *err, size_t size)
{
    return uroce_list_devices(ret, UROCE_DEVICES_MAX, err, size);
}

static void assert_gid(struct uroce_device *dev, unsigned index, const uint8_t want[16], const char *ifname)
{
    union uroce_gid g;
    unsigned ifindex;
    assert_int_equal(uroce_query_gid(dev, index, &g), 0);
    assert_memory_equal(g.raw, want, 16);
    assert_int_equal(uroce_query_gid_interface(dev, index, &ifindex), 0);
    assert_int_equal(ifindex, if_nametoindex(ifname));
}

static const uint8_t gid_v4[16] = {[10] = 0xff, [11] = 0xff, 10, 77, 0, 1}, gid_v6[16] = {0xfd, 0x77, [15] = 1},
                     gid_lo4[16] = {[10] = 0xff, [11] = 0xff, 127, 0, 0, 1}, gid_lo6[16] = {[15] = 1};

static void without_any_word_there_is_one_device_with_all_addresses_loopback_last(void **state)
{
    (void)state;
    struct uroce_device_info d[UROCE_DEVICES_MAX];
    struct uroce_device *dev;
    union uroce_gid g;
    char err[256];
    assert_int_equal(list(d, err, sizeof err), 1);
    assert_string_equal(d[0].name, "uroce0");
    assert_int_equal(uroce_open(NULL, &dev, err, sizeof err), 0);
    assert_gid(dev, 0, gid_v4, "va");
    assert_gid(dev, 1, gid_v6, "va");
    assert_int_equal(uroce_query_gid(dev, 2, &g), 0);
    assert_true(g.raw[0] == 0xfe && g.raw[1] == 0x80);
    assert_gid(dev, 3, gid_lo4, "lo");
    assert_gid(dev, 4, gid_lo6, "lo");
    assert_int_equal(d[0].gids, 5);
    assert_int_equal(uroce_query_gid(dev, 5, &g), -ENOENT);
    assert_int_equal(uroce_query_gid_interface(dev, 5, &(unsigned){0}), -ENOENT);
    assert_int_equal(uroce_close(dev), 0);
}

static void several_devices_have_names_and_addresses_of_their_own(void **state)
{
    (void)state;
    struct uroce_device_info d[UROCE_DEVICES_MAX];
    struct uroce_device_attr a;
    struct uroce_device *first, *second;
    char err[256];
    setenv("UROCE_DEVICES", " eth_0 = 10.77.0.1 , fd77::1 ; lo.1=::1,127.0.0.1;", 1);
    assert_int_equal(list(d, err, sizeof err), 2);
    assert_string_equal(d[0].name, "eth_0");
    assert_string_equal(d[1].name, "lo.1");
    assert_true(d[0].node_guid != d[1].node_guid);
    assert_int_equal(d[0].gids, 2);
    assert_memory_equal(d[0].gid[1].gid.raw, gid_v6, 16);
    assert_int_equal(d[0].gid[1].interface, if_nametoindex("va"));
    assert_int_equal(uroce_open(NULL, &first, err, sizeof err), 0);
    assert_gid(first, 0, gid_v4, "va");
    assert_gid(first, 1, gid_v6, "va");
    struct uroce_config c = {.name = "lo.1"};
    assert_int_equal(uroce_open(&c, &second, err, sizeof err), 0);
    assert_gid(second, 0, gid_lo6, "lo");
    assert_gid(second, 1, gid_lo4, "lo");
    uroce_query_device(second, &a);
    assert_string_equal(a.name, "lo.1");
    assert_true(a.node_guid == d[1].node_guid);
    assert_int_equal(a.gids, 2);
    assert_int_equal(uroce_close(first), 0);
    assert_int_equal(uroce_close(second), 0);
    assert_int_equal(uroce_list_devices(NULL, 0, err, sizeof err), 2);
    c.name = "eth1";
    assert_int_equal(uroce_open(&c, &first, err, sizeof err), -ENODEV);
    assert_non_null(strstr(err, "eth1"));
    assert_non_null(strstr(err, "UROCE_DEVICES"));
}

static void the_callers_addresses_come_before_the_environments(void **state)
{
    (void)state;
    struct uroce_device_attr a;
    struct uroce_device *dev;
    char err[256];
    setenv("UROCE_DEVICES", "x=127.0.0.1", 1);
    struct uroce_config c = {.addresses = "10.77.0.1", .name = "mine"};
    assert_int_equal(uroce_open(&c, &dev, err, sizeof err), 0);
    uroce_query_device(dev, &a);
    assert_string_equal(a.name, "mine");
    assert_gid(dev, 0, gid_v4, "va");
    assert_int_equal(uroce_close(dev), 0);
}

static void a_device_whose_address_is_not_there_is_named_and_the_others_work(void **state)
{
    (void)state;
    static const char *const lists[] = {"bad=192.0.2.9;good=10.77.0.1", "good=10.77.0.1;bad=192.0.2.9"};
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
        struct uroce_device_info d[UROCE_DEVICES_MAX];
        struct uroce_device *dev;
        char err[256];
        unset_all(NULL);
        setenv("UROCE_DEVICES", lists[i], 1);
        assert_int_equal(list(d, err, sizeof err), 1);
        assert_string_equal(d[0].name, "good");
        assert_non_null(strstr(err, "UROCE_DEVICES: no interface that is up has 192.0.2.9"));
        assert_int_equal(uroce_open(NULL, &dev, err, sizeof err), 0);
        assert_gid(dev, 0, gid_v4, "va");
        assert_int_equal(uroce_close(dev), 0);
        struct uroce_config bad = {.name = "bad", .congestion_control = -1};
        assert_int_equal(uroce_open(&bad, &dev, err, sizeof err), -EADDRNOTAVAIL);
        assert_non_null(strstr(err, "192.0.2.9"));
    }
}

static void each_bad_value_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *devices, *address, *says;
        int err;
    } cases[] = {
        {"10.77.0.1", NULL, "UROCE_DEVICES: '10.77.0.1': NAME=", -EINVAL},
        {"=10.77.0.1", NULL, "UROCE_DEVICES: '' is no name", -EINVAL},
        {"../x=10.77.0.1", NULL, "UROCE_DEVICES: '../x' is no name", -EINVAL},
        {"a/b=10.77.0.1", NULL, "UROCE_DEVICES: 'a/b' is no name", -EINVAL},
        {"a123456789012345678901234567890123=10.77.0.1", NULL, "is no name", -EINVAL},
        {"a=10.77.0.1;a=127.0.0.1", NULL, "UROCE_DEVICES: a is there twice", -EINVAL},
        {"a=;b=127.0.0.1", NULL, "UROCE_DEVICES: a has no address", -EINVAL},
        {"a= , ", NULL, "UROCE_DEVICES: no address is given", -EINVAL},
        {" ; ", NULL, "UROCE_DEVICES: no device is given", -EINVAL},
        {"a=nobody", NULL, "UROCE_DEVICES: 'nobody' is not an IPv4 or IPv6 address", -EINVAL},
        {"a=192.0.2.9", NULL, "UROCE_DEVICES: no interface that is up has 192.0.2.9", -EADDRNOTAVAIL},
        {"a=fd77::1%lo", NULL, "UROCE_DEVICES: no interface that is up has fd77::1%lo", -EADDRNOTAVAIL},
        {"a=10.77.0.1", "10.77.0.1", "UROCE_DEVICES and UROCE_ADDRESS are both set", -EINVAL},
        {NULL, "10.77.0.300", "UROCE_ADDRESS: '10.77.0.300' is not an IPv4 or IPv6 address", -EINVAL},
        {NULL, "192.0.2.9", "UROCE_ADDRESS: no interface that is up has 192.0.2.9", -EADDRNOTAVAIL},
        {NULL, ",", "UROCE_ADDRESS: no address is given", -EINVAL},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct uroce_device_info d[UROCE_DEVICES_MAX];
        struct uroce_device *dev = NULL;
        char err[256], err2[256];
        unset_all(NULL);
        if (cases[i].devices)
            setenv("UROCE_DEVICES", cases[i].devices, 1);
        if (cases[i].address)
            setenv("UROCE_ADDRESS", cases[i].address, 1);
        int r = list(d, err, sizeof err);
        if (r != cases[i].err || !strstr(err, cases[i].says))
            fail_msg("case %zu: %d, %s", i, r, err);
        assert_int_equal(uroce_open(NULL, &dev, err2, sizeof err2), r);
        assert_string_equal(err2, err);
        assert_null(dev);
    }
}

static void too_many_devices_are_refused(void **state)
{
    (void)state;
    char text[512] = "", err[256];
    struct uroce_device_info d[UROCE_DEVICES_MAX];
    for (int i = 0; i <= UROCE_DEVICES_MAX; i++)
        sprintf(text + strlen(text), "d%d=127.0.0.1;", i);
    setenv("UROCE_DEVICES", text, 1);
    assert_int_equal(list(d, err, sizeof err), -EINVAL);
    assert_non_null(strstr(err, "more than 16 devices"));
}

int main(void)
{
    netns_pair_make(&ns, 1500);
    netns_enter(&ns, 0);
    setenv("UROCE_HOLDER", "off", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(without_any_word_there_is_one_device_with_all_addresses_loopback_last, unset_all),
        cmocka_unit_test_setup(several_devices_have_names_and_addresses_of_their_own, unset_all),
        cmocka_unit_test_setup(the_callers_addresses_come_before_the_environments, unset_all),
        cmocka_unit_test_setup(a_device_whose_address_is_not_there_is_named_and_the_others_work, unset_all),
        cmocka_unit_test_setup(each_bad_value_is_named, unset_all),
        cmocka_unit_test_setup(too_many_devices_are_refused, unset_all),
    };
    return cmocka_run_group_tests_name("uroce configuration", tests, NULL, NULL);
}
