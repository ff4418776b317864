"""`python -m pearl.cli COMMAND` is `pearl COMMAND`."""

from pearl.cli import main

if __name__ == "__main__":
    main()
