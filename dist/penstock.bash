# Completion for bash: commands and options are asked from the command itself.
_penstock()
{
    local cur=${COMP_WORDS[COMP_CWORD]} words commands command
    commands=$(penstock --help 2>/dev/null | sed -n 's/^  \([a-z-]*\( [a-z]\+\)\?\)  .*/\1/p')
    if [ "$COMP_CWORD" = 1 ]; then
        words=$(cut -d' ' -f1 <<<"$commands" | sort -u)
    elif [ "$COMP_CWORD" = 2 ] && grep -q "^${COMP_WORDS[1]} " <<<"$commands"; then
        words=$(sed -n "s/^${COMP_WORDS[1]} //p" <<<"$commands")
    elif [[ $cur == -* ]]; then
        command=${COMP_WORDS[1]}
        grep -qx "$command ${COMP_WORDS[2]}" <<<"$commands" && command="$command ${COMP_WORDS[2]}"
        words=$(penstock $command --help 2>/dev/null | grep -o -- '--[a-z][a-z-]*' | sort -u)
    else
        COMPREPLY=($(compgen -f -- "$cur"))
        return
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o filenames -F _penstock penstock
