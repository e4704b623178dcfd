#!/usr/bin/python3
"""The example of docs/service-slots.md compiles, and does what the page says: slot_page.py SOURCE-ROOT CC LIBRARY..."""
import pathlib
import re
import subprocess
import sys
import tempfile

MAIN = r"""
int main(void)
{
    struct slot_chain *c;
    char err[200];
    if (slot_chain_new(1, &c) || slot_chain_attach_ops(c, &slot_forbid_ops, "", err, sizeof err) != -22 ||
        slot_chain_attach_ops(c, &slot_forbid_ops, "abab", err, sizeof err))
        return 1;
    static const struct { const char *text; int bad; } cases[] = {
        {"abab", 1}, {"xxabababyy", 1}, {"aabab", 1}, {"abaab", 0}, {"abacab", 0}, {"", 0}, {"aba", 0}, {"babab", 1},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].text);
        for (size_t cut = 0; cut <= n; cut++) {
            struct iovec a = {(void *)cases[i].text, cut}, b = {(char *)cases[i].text + cut, n - cut};
            struct slot_packet p = {.qpn = 1, .first = true}, q = {.qpn = 1, .psn = 1, .last = true};
            uint64_t v;
            bool has = false;
            int bad = slot_chain_payload(c, &p, &a, 1, &v, &has) == SLOT_REFUSE;
            if (!bad)
                bad = slot_chain_payload(c, &q, &b, 1, &v, &has) == SLOT_REFUSE;
            if (bad != cases[i].bad)
                return printf("%s cut at %zu\n", cases[i].text, cut), 1;
        }
    }
    slot_chain_free(c);
    return 0;
}
"""
root = pathlib.Path(sys.argv[1])
code = re.search(r"```c\n(.*?)```", (root / "docs/service-slots.md").read_text(), re.S)[1]
with tempfile.TemporaryDirectory() as tmp:
    (pathlib.Path(tmp) / "page.c").write_text(code + MAIN)
    subprocess.run([sys.argv[2], "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE",
                    f"-I{root}/src/roce/slot", f"-I{root}/src/roce/slot/include", f"-I{root}/src/roce/wire/include",
                    f"-I{root}/src/base/include", f"{tmp}/page.c", "-o", f"{tmp}/page", *sys.argv[3:]], check=True)
    sys.exit(subprocess.run([f"{tmp}/page"]).returncode)
