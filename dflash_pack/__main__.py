"""``python -m dflash_pack``."""

from dflash_pack.cli import main

if __name__ == "__main__":
    main()
