"""The command as `meson install` would have it in a prefix, which tests can fill and move."""
import pathlib
import shutil


def install(nets, built, preload, libdir):
    """In the namespaces' folder, without the drop-in libraries: the prefix, their folder, the command."""
    prefix = pathlib.Path(nets.dir) / "prefix"
    private = prefix / libdir / "uroce"
    (prefix / "bin").mkdir(parents=True)
    private.mkdir(parents=True)
    uroce = prefix / "bin/uroce"
    shutil.copy(built, uroce)
    shutil.copy(preload, private)
    return prefix, private, uroce
