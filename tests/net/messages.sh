#!/usr/bin/env bash
# What a user reads who has got something wrong: for each kind of mistake one line, which names the thing and what to do,
# and the exit code of the manual. The table: exit code, words that the line has, the command.
. "$(dirname "$0")/../lib/serve.sh"
RUN=()   # before the command: another user, another machine
ROWS=0

# wrong CODE WORDS ARGS...
wrong() {
    local code=$1 words=$2 line
    shift 2
    expect "$code" "${RUN[@]}" timeout 60 "$PENSTOCK" "$@"
    [ "$(wc -l <"$T/err")" -eq 1 ] || fail "$*: not one line: $(cat "$T/err")"
    line=$(cat "$T/err")
    [[ $line == penstock* ]] || fail "$*: \"$line\" does not begin with the command"
    [[ $line == *"$words"* ]] || fail "$*: \"$line\" does not say \"$words\""
    [[ $line != *pst_* && $line != *"UNKNOWN:"* ]] || fail "$*: \"$line\" has words of a programmer"
    [[ $line != *" " ]] || fail "$*: \"$line\" ends with a space"
    ROWS=$((ROWS + 1))
}
# A line per row: CODE | WORDS | ARGS, which the shell splits and expands.
table() {
    local code words args
    while IFS='|' read -r code words args; do
        words=${words# }
        eval "wrong $code \"\${words% }\" $args"
    done
}

serve --dev "$T/store"
cd "$T"
mkdir tree full m
echo x >file
echo x >tree/x
echo x >full/x
echo short >short
echo 0123456789abcdef >other.token
chmod 600 short other.token
cp other.token wide; chmod 622 wide
NOBODY=127.0.0.1:1
"$PENSTOCK" cp file "$URL/file"
"$PENSTOCK" cp -r tree "$URL/tree"
"$PENSTOCK" pool create "local:$T/local?ml" >/dev/null

say "the command line"
table <<'ROWS'
2 | no command "frobnicate"; penstock --help | frobnicate
2 | pool goes on with one of: create, list, query, destroy | pool
2 | pool goes on with one of: create, list, query, destroy | pool make
2 | an argument is missing; usage: penstock ls [OPTIONS] URL | ls
2 | too many arguments from "x" on; usage: penstock version [OPTIONS] | version x
2 | unknown option --nope | ls --nope "$URL"
2 | unknown option -Z | ls -lZ "$URL"
2 | --json takes no value | ls --json=1 "$URL"
2 | --timeout needs a value | ls "$URL" --timeout
2 | "abc" is not a number | ls --timeout abc "$URL"
2 | "1X" is not a size (4096, 64K, 1.5G) | pool create --quota 1X "$SERVER/x"
2 | "999" is not permission bits in octal | pool create --mode 999 "$SERVER/x"
2 | --mode: a pool has the bits 777 only | pool create --mode 1777 "$SERVER/x"
2 | --uid, --gid: must be at most 4294967295 | pool create --uid 4294967296 "$SERVER/x"
2 | --chunk-size: must be a power of two from 64K to 16M | container create -c 1000 "$SERVER/default/x"
2 | --jobs: must be from 1 to 64 | bench -j 0 "$URL"
2 | --size: must be from 1 to 8388608 | bench -s 3G "$URL"
2 | --jobs: must be from 1 to 64 | cp -j 0 file "$URL/f"
2 | --max-threads: at most 256 | mount --max-threads 257 "$URL" m
2 | "lzma" must be none, gzip or zstd | export -z lzma "$URL" x.tar
2 | --durability: "maybe" must be close or fsync | mount --durability maybe "$URL" m
ROWS

say "URLs"
table <<'ROWS'
2 | "foo" is not a URL: it has the form penstock://HOST[:PORT]/POOL/CONTAINER | ls foo
2 | "http://x/y" is not a URL | ls http://x/y
2 | names no pool | ls "$SERVER"
2 | names no container | ls "$SERVER/default"
2 | does not name a host and port | ls penstock:///p/c
2 | does not name a host and port | ls penstock://127.0.0.1:99999/p/c
2 | names of pools and containers have 1 to 127 of A-Z a-z 0-9 . _ - | ls "$SERVER/de fault/x"
2 | names no directory | ls local:
2 | does not name a socket | ls 'penstock+unix://tmp/none?p/c'
4 | is not a store (penstock pool create 'local:DIRECTORY?POOL' | ls "local:$T/full"
4 | No such file or directory (penstock pool create 'local:DIRECTORY?POOL' | ls "local:$T/none"
1 | Not a directory | ls "local:$T/file"
1 | data.buffer_memory: 1048576 MiB for each of its shards: this machine has | serve --dev "$T/local" --listen 127.0.0.1:0 --metrics off --shards 2 --buffer-memory 1T
2 | --buffer-memory: "1P": must be a size (512K, 1M, ...) from 16M to 1T | serve --dev "$T/local" --listen 127.0.0.1:0 --metrics off --buffer-memory 1P
1 | is in use by process | ls "local:$T/store"
2 | wants the directory of a store that no daemon has open; penstock scrub | check "$SERVER"
2 | both must be in one container | mv "$URL/a" "$SERVER/default/other/a"
2 | a whole container is mounted: leave out "/x" | mount "$URL/x" m
2 | is an absolute path of its machine | backup "$SERVER" relative
ROWS

say "servers"
table <<'ROWS'
3 | 127.0.0.1:1: no connection: Connection refused; is the server running? (penstock serve) | ls penstock://$NOBODY/p/c
3 | 127.0.0.1:1: no connection: Connection refused; is the server running? (penstock serve) | status penstock://$NOBODY
0 | 127.0.0.1:1: no connection: Connection refused | support-bundle penstock://$NOBODY b.tar.gz
3 | No such file or directory; is the server running? (penstock serve) | ls "penstock+unix://$T/none?p/c"
5 | --cert, --key; penstock tls init makes them), or allow plain text (--insecure) | ls penstock://192.0.2.1/p/c
5 | or allow plain text (--insecure) | status penstock://192.0.2.1
3 | offers no data endpoint for provider nonsense | cat --provider nonsense "$URL/file"
1 | RDMA is required | ls --require-rdma "$URL"
4 | token file none: No such file | ls --token-file none "$URL"
4 | token file none: No such file | status --token-file none "$SERVER"
5 | token file wide may be written by others: chmod 600 it | ls --token-file wide "$URL"
5 | token file wide may be written by others: chmod 600 it | status --token-file wide "$SERVER"
2 | token file short: its first line must have at least 16 characters | credential create "$SERVER" x tenant=y --from short
5 | the token is not one of this server's (--token-file; --ca, --cert and --key) | ls --token-file other.token "$URL"
5 | the token is not one of this server's (--token-file; --ca, --cert and --key) | status --token-file other.token "$SERVER"
ROWS

say "pools and containers"
table <<'ROWS'
1 | pool "default" is there already | pool create "$SERVER/default"
1 | container "default/default" is there already | container create "$URL"
4 | no pool "none" there (penstock pool list lists what there is) | pool query "$SERVER/none"
4 | no pool "none" there | pool destroy "$SERVER/none"
4 | no pool "none" there | container list "$SERVER/none"
4 | no container "default/none" there (penstock container list | container query "$SERVER/default/none"
4 | no pool "none" there (penstock pool list | container create "$SERVER/none/x"
4 | cannot open container "none" of pool "default" | ls "$SERVER/default/none"
1 | pool "default" has containers: --force destroys them | pool destroy "$SERVER/default"
1 | container default/default has 4 objects: --force destroys them | container destroy "$URL"
ROWS

say "files"
table <<'ROWS'
4 | /none: No such file or directory | ls "$URL/none"
4 | /none: No such file or directory | stat "$URL/none"
4 | /none: No such file or directory | cat "$URL/none"
4 | /none: No such file or directory | rm "$URL/none"
1 | /tree: Is a directory | cat "$URL/tree"
1 | /file/x: Not a directory | cat "$URL/file/x"
1 | /tree is a directory: use rm -r | rm "$URL/tree"
1 | /file: File exists | mkdir "$URL/file"
4 | /a/b: there is no directory above it; --parents makes it | mkdir "$URL/a/b"
4 | /none: No such file or directory | mv "$URL/none" "$URL/x"
4 | /no/x: there is no directory above it | mv "$URL/file" "$URL/no/x"
1 | /tree cannot be moved below itself | mv "$URL/tree" "$URL/tree/y"
1 | /file to /tree: File exists | mv -n "$URL/file" "$URL/tree"
4 | none: No such file or directory | cp none "$URL/x"
4 | default/default/none: No such file or directory | cp "$URL/none" .
1 | tree is a directory: use penstock cp -r | cp tree "$URL/x"
4 | default/default/no/x: there is no directory above it | cp file "$URL/no/x"
4 | no/x: there is no directory above it | cp "$URL/file" no/x
1 | default/default/tree: Is a directory | put file "$URL/tree"
2 | "file" is not a URL | get file
4 | /none: No such file or directory | export "$URL/none" x.tar
4 | no/x.tar: No such file or directory | export "$URL" no/x.tar
4 | none.tar: No such file or directory | import "$URL" none.tar
1 | file: not a tar archive, or damaged | import "$URL/x" file
ROWS

say "filters in the host"
(umask 077; head -c 32 /dev/urandom >key; head -c 32 /dev/urandom >key2)
"$PENSTOCK" container create "$SERVER/default/secret"
"$PENSTOCK" ls --filter crypt:key_file=key "$SERVER/default/secret"
chmod 644 file
table <<'ROWS'
2 | no filter "cropt"; known filters: compress crypt csum | ls --filter cropt "$URL"
2 | filter crypt: no key: give key_file=, key_env= or key_command= | ls --filter crypt "$URL"
2 | filter crypt: unknown option "kee"; known: key_file | ls --filter crypt:kee=1 "$URL"
2 | filter crypt: key file none: No such file | ls --filter crypt:key_file=none "$URL"
5 | filter crypt: key file file may be read by others: chmod 600 it | ls --filter crypt:key_file=file "$URL"
2 | filter compress: alg=rar: must be lz4 or zstd | mount --filter compress:alg=rar "$URL" m
1 | its key is wrapped by another tenant key: key_file= | ls --filter crypt:key_file=key2 "$SERVER/default/secret"
1 | is encrypted: the filter crypt, with its key, is needed | ls --filter csum "$SERVER/default/secret"
1 | has files that were written without the filter crypt | ls --filter crypt:key_file=key "$URL"
ROWS
RUN=(env PENSTOCK_FILTERS="csum cropt")
table <<'ROWS'
2 | environment variable PENSTOCK_FILTERS: no filter "cropt" | ls "$URL"
ROWS
RUN=()

say "stores and certificates"
table <<'ROWS'
4 | none: No such file or directory | check none
4 | full is not a store | check full
1 | is in use by process | check "$T/store"
1 | is in use by process | upgrade "$T/store"
1 | full: Directory not empty | backup "$SERVER" "$T/full"
4 | is not a store | backup "local:$T/full" "$T/b"
4 | no/b.tar.gz: No such file or directory | support-bundle "$SERVER" no/b.tar.gz
1 | unknown option a: io, direct, create, size | ls -o a=b "local:$T/local"
1 | size=x: a size is expected (64G | ls -o size=x "local:$T/local"
1 | a number from 0 to | ls -o sync_ms=x "local:$T/local"
4 | cannot make the folder: No such file or directory | tls init no/tls
ROWS
"$PENSTOCK" tls init tls >/dev/null
table <<'ROWS'
1 | choose another --client | tls init tls
1 | TLS needs three files: CA, certificate, key | ls --ca tls/ca.pem penstock://192.0.2.1/p/c
ROWS

say "daemons"
config() { printf '%b' "$1" >c.yaml; }
row() { config "$1"; wrong "$2" "$3" serve -c c.yaml; }
row 'sotre: {}' 2 'c.yaml: line 1: there is no key "sotre"; penstock.yaml(5) has them all'
row 'store: x' 2 'line 1: store: must be a map'
row 'store: {url: [x]}' 2 'line 1: url: must be a single value'
row 'store: {url: local:/x}\ncredentials: {}' 2 'line 2: credentials: must be a list'
row 'log: info\nlog: warn' 2 'line 2: the key "log" is there twice'
row 'store: {url: local:/x}\ndata: {shards: many}' 2 'line 2: data.shards: "many": must be a number from 1 to 64'
row 'store: {url: local:/x}\nlog: loud' 2 'line 2: log: "loud": must be error, warn, info or debug'
row '' 2 'the file is empty'
table <<'ROWS'
2 | store.url: is missing: local:/DIRECTORY (or use penstock serve --dev DIRECTORY) | serve
2 | filter crypt: no key: give key_file=, key_env= or key_command= | serve --dev "$T/local" --listen 127.0.0.1:0 --metrics off --filter crypt
1 | filter crypt: key file file may be read by others: chmod 600 it | serve --dev "$T/local" --listen 127.0.0.1:0 --metrics off --filter crypt:key_file=file
2 | filter compress: alg=gzip: must be lz4 or zstd | serve --dev "$T/local" --listen 127.0.0.1:0 --metrics off --filter compress:alg=gzip
2 | filter csum: compress, crypt and csum have to follow one another | serve --dev "$T/local" --listen 127.0.0.1:0 --metrics off --filter compress --filter delay:ms=1 --filter csum
2 | --filter says which keys | rewrap "local:$T/local?ml/c"
2 | filter crypt: no key: give key_file= | rewrap --filter crypt "$URL"
1 | has files that were written without the filter crypt | rewrap --filter crypt:key_file=key "$URL"
2 | none.yaml: cannot read the configuration: No such file | serve -c none.yaml
2 | --shards: "x": must be a number | serve --shards x
1 | no store engine for the URL "nope:/x"; known schemes: local: | serve --store nope:/x --metrics off
1 | is in use by process | serve --dev "$T/store" --listen 127.0.0.1:0 --metrics off
1 | is the address this machine's, and free? | serve --dev "$T/local" --listen "127.0.0.1:$CONTROL" --metrics off
1 | Address already in use (metrics.listen; "off" does without) | serve --dev "$T/local" --listen 127.0.0.1:0 --metrics "127.0.0.1:$METRICS"
2 | off loopback needs control.tls (penstock tls init makes it), or control.insecure | serve --dev "$T/local" --listen 192.0.2.1:1 --metrics off
ROWS

say "mounts"
table <<'ROWS'
4 | cannot mount on none: No such file or directory (make the directory first) | mount "$URL" none
1 | cannot mount on file: not a directory | mount "$URL" file
1 | unknown mount option "nonsense" | mount --mount-options nonsense "$URL" m
1 | m is not a mount of penstock | umount m
4 | none: No such file or directory | umount none
ROWS
if [ -c /dev/fuse ]; then
    table <<'ROWS'
3 | 127.0.0.1:1: no connection: Connection refused | mount penstock://$NOBODY/p/c m
ROWS
fi

if [ "$(id -u)" -eq 0 ]; then
    say "somebody else's things"
    chmod 755 "$T"
    RUN=(setpriv --reuid 65534 --regid 65534 --clear-groups env PENSTOCK_RUN_DIR="$T/other")
    mkdir other
    chmod 700 other && chown 65534:65534 other
    table <<'ROWS'
5 | neither a token nor a client certificate with a credential here (--token-file; --ca, --cert and --key) | ls "$URL"
5 | neither a token nor a client certificate with a credential here (--token-file; --ca, --cert and --key) | status "$SERVER"
5 | Permission denied | ls "local:$T/local"
5 | Permission denied | check "$T/store"
5 | Permission denied | tls init "$T/x"
ROWS
    say "a machine that has nothing but loopback"
    RUN=(unshare --net sh -c 'ip link set lo up && exec "$@"' sh)
    table <<'ROWS'
1 | libfabric's verbs needs an address that is not loopback | serve --dev "$T/lone" --metrics off --provider uroce
ROWS
fi
say "passed: $ROWS messages"
