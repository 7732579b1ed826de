"""Attempts to get past rules, and calls that a sensible policy must still allow.

A row is (the attempt, the rules in force, the raw arguments or the command line, the expected answer). ``ask`` and
``deny`` both keep the call from running unseen; ``allow`` never is a row's answer in the tables of bypasses.
"""

from __future__ import annotations

READING = """
[[rule]]
name = "reading"
verdict = "allow"
tools = ["bash"]
command = [
  "git status", "git status -s|--short", "git diff *", "git log *", "git show *", "git add *", "git commit -m *", "ls *", "rg *",
  "cat *", "head *", "wc *", "echo *", "cd *", "pytest *", "npm test", "npm run lint", "find *", "sort *", "timeout *", "xargs *",
  "awk *", "sed -n *", "python -m pytest *", "test *", "[ *", "true", "make check",
]
"""
"""What a coding agent may do unseen."""

NO_DESTRUCTION = """
[[rule]]
name = "no-destruction"
verdict = "deny"
tools = ["*"]
command = ["rm -r|--recursive", "git push --force|-f", "dd of=/dev/*", "chmod 777|0777", "curl", "shutdown", "kill -9 1"]

[[rule]]
name = "the-rest"
verdict = "allow"
tools = ["*"]
"""
"""Everything goes, but for a few commands: the hardest policy to hold."""

GIT = """
[[rule]]
name = "git"
verdict = "allow"
tools = ["bash"]
command = [
  "git grep *", "git fetch *", "git push *", "git pull *", "git ls-remote *", "git log *", "git rebase *", "git init *",
  "git clone *", "git config *", "git remote *", "git submodule *", "git evil *",
  "git st *", "git archive *", "git diff *", "git show *", "git branch *",
]
"""
"""What git does, by the names of its subcommands alone."""

GIT_DIRECTORY = """
[[rule]]
name = "git"
verdict = "allow"
tools = ["bash"]
command = ["git *"]
"""

SHOWING = """
[[rule]]
name = "showing"
verdict = "allow"
tools = ["bash"]
command = ["cat src/**", "echo *"]
"""
"""Only what lies in src may be read."""

ANYTHING = """
[[rule]]
name = "anything"
verdict = "allow"
tools = ["bash"]
command = ["* *"]
"""
EVERYTHING = """
[[rule]]
name = "everything"
verdict = "allow"
tools = ["*"]
"""
"""No rule looks at what a command is."""

PLACES = """
[[rule]]
name = "places"
verdict = "allow"
tools = ["bash"]
command = [
  "cp *", "mv *", "tee *", "sed -i *", "touch *", "mkdir *", "cat *", "find *", "git checkout *", "git add *", "install *",
  "cd *", "echo *", "timeout *", "ls .github/*",
]
"""
"""What changes files, anywhere."""

DATABASE = """
[[rule]]
name = "database"
verdict = "allow"
tools = ["bash"]
command = ["sqlite3 app.db", "echo *", "cat *", "true", "timeout *", "xargs *", "exec *", "sqlite3 app.db *"]
"""
"""One program that runs what it reads."""

SHELL = [
    # --- chaining
    ("a second command after &&", READING, "git status && rm -rf x", "ask"),
    ("a second command after ||", READING, "git status || rm -rf x", "ask"),
    ("a second command after ;", READING, "git status; rm -rf x", "ask"),
    ("a second command after a pipe", READING, "git status | tee x", "ask"),
    ("a second command after |&", READING, "git status |& tee x", "ask"),
    ("a second command after &", READING, "git status & rm -rf x", "ask"),
    ("left in the background", READING, "git status &", "ask"),
    ("a second line", READING, "git status\nrm -rf x", "ask"),
    ("a second line after blanks", READING, "git status   \n\n\n   rm -rf x", "ask"),
    ("a second line after a comment", READING, "git status # nothing\nrm -rf x", "ask"),
    ("no blank around the operator", READING, "git status&&rm -rf x", "ask"),
    ("a group", READING, "{ git status; rm -rf x; }", "ask"),
    ("a subshell", READING, "(git status; rm -rf x)", "ask"),
    ("a negation", READING, "! rm -rf x", "ask"),
    ("a branch", READING, "if git status; then rm -rf x; fi", "ask"),
    ("the other branch", READING, "if git status; then true; else rm -rf x; fi", "ask"),
    ("a loop", READING, "for f in a b; do rm -rf $f; done", "ask"),
    ("a loop's condition", READING, "while rm -rf x; do git status; done", "ask"),
    ("a case", READING, "case x in x) rm -rf x;; esac", "ask"),
    ("chained, denied", NO_DESTRUCTION, "git status && rm -rf x", "deny"),
    ("piped, denied", NO_DESTRUCTION, "cat list | rm -r x", "deny"),
    ("second line, denied", NO_DESTRUCTION, "git status\nrm -rf x", "deny"),
    ("in the background, denied", NO_DESTRUCTION, "sleep 1 & rm -rf x", "deny"),
    ("in a loop, denied", NO_DESTRUCTION, "for f in a b; do rm -rf $f; done", "deny"),
    ("in a case, denied", NO_DESTRUCTION, "case x in x) rm -rf x;; esac", "deny"),
    ("in a function, denied", NO_DESTRUCTION, "f() { rm -rf x; }; f", "deny"),
    # --- substitutions
    ("a substitution as argument", READING, "git log $(rm -rf x)", "ask"),
    ("a substitution in double quotes", READING, 'git log "$(rm -rf x)"', "ask"),
    ("a substitution in backquotes", READING, "git log `rm -rf x`", "ask"),
    ("a substitution in a substitution", READING, "echo $(echo $(rm -rf x))", "ask"),
    ("a substitution in a default", READING, "echo ${HOME:-$(rm -rf x)}", "ask"),
    ("a substitution in a quoted default", READING, "echo \"${y:-'$(rm -rf x)'}\"", "ask"),
    ("a substitution in arithmetic", READING, "echo $((1 + $(rm -rf x)))", "ask"),
    ("a process substitution", READING, "cat <(rm -rf x)", "ask"),
    ("a substitution as redirection", READING, "cat < $(rm -rf x)", "ask"),
    ("a substitution in a here-document", READING, "cat <<E\n$(rm -rf x)\nE", "ask"),
    ("a substitution in a here-string", READING, 'cat <<< "$(rm -rf x)"', "ask"),
    ("a substitution in an assignment", READING, "A=$(rm -rf x) git status", "ask"),
    ("a prompt expansion", READING, "echo ${HOME@P}", "ask"),
    ("an indirect expansion", READING, "echo ${!HOME}", "ask"),
    ("arithmetic over a name", READING, "echo $((HOME))", "ask"),
    ("a subscript that is evaluated", READING, "test -v 'a[$(rm -rf x)]'", "ask"),
    ("a numeric test in [[", READING, "[[ 'a[$(rm -rf x)]' -eq 1 ]]", "ask"),
    ("substituted, denied", NO_DESTRUCTION, 'echo "$(rm -rf x)"', "deny"),
    ("backquoted, denied", NO_DESTRUCTION, "echo `rm -rf x`", "deny"),
    ("in a here-document, denied", NO_DESTRUCTION, "cat <<E\n$(rm -rf x)\nE", "deny"),
    ("in a tabbed here-document", NO_DESTRUCTION, "cat <<-E\n\t$y `rm -rf x`\n\tE", "ask"),
    ("in a process substitution, denied", NO_DESTRUCTION, "cat <(rm -rf x)", "deny"),
    # --- prefixes of the text
    ("a longer program's name", READING, "git-status-and-more", "ask"),
    ("a longer subcommand", READING, "git statusx", "ask"),
    ("another program's path", READING, "./git status", "ask"),
    ("a program from elsewhere", READING, "/srv/git status", "ask"),
    ("a flag the pattern does not name", READING, "git status --porcelain", "ask"),
    ("a word too many", READING, "npm test evil", "ask"),
    ("a word too few", READING, "npm run", "ask"),
    ("options in front of the subcommand", READING, "git -c core.fsmonitor=./evil status", "ask"),
    ("a path in front of the subcommand", READING, "git -C /etc status", "ask"),
    ("git's own programs from elsewhere", READING, "git --exec-path=/tmp log", "ask"),
    ("an alias made on the way", READING, "git -c alias.x='!rm -rf y' x", "ask"),
    ("a pager made on the way", READING, "git -c core.pager='rm -rf x' log", "ask"),
    ("a pager in the environment", READING, "GIT_PAGER='rm -rf x' git log", "ask"),
    ("an ssh command", READING, "GIT_SSH_COMMAND='rm -rf x' git log", "ask"),
    ("another program path", READING, "PATH=/tmp git status", "ask"),
    ("a preloaded library", READING, "LD_PRELOAD=/tmp/x.so git status", "ask"),
    ("a path for all that follows", READING, "PATH=/tmp; git status", "ask"),
    ("an exported path", READING, "export PATH=/tmp; git status", "ask"),
    ("a hashed program", READING, "hash -p /tmp/evil git; git status", "ask"),
    ("a function with the name", READING, "git() { rm -rf x; }; git status", "ask"),
    ("a function by keyword", READING, "function ls { rm -rf x; }\nls", "ask"),
    ("an alias with the name", READING, "shopt -s expand_aliases\nalias git='rm -rf x'\ngit status", "ask"),
    ("a sourced file", READING, "source x.sh && git status", "ask"),
    ("a sourced file by dot", READING, ". ./x.sh", "ask"),
    ("a file written", READING, "echo evil > .git/hooks/pre-commit", "ask"),
    ("a file written, no blank", READING, "echo evil>x", "ask"),
    ("a file written in front", READING, ">x echo evil", "ask"),
    ("a file written by &>", READING, "git log &>x", "ask"),
    ("a file appended to", READING, "echo evil >> ~/.bashrc", "ask"),
    ("a file opened for both", READING, "cat <> x", "ask"),
    ("words after a redirection", READING, "npm >/dev/null publish", "ask"),
    ("a connection by redirection", READING, "cat < /dev/tcp/evil.example/80", "ask"),
    ("a pre-processor of rg", READING, "rg --pre ./evil x", "ask"),
    ("a pre-processor of rg, joined", READING, "rg --pre=./evil x", "ask"),
    ("a compressor of sort", READING, "sort --compress-prog=./evil x", "ask"),
    ("an option that only bash knows", READING, "rg $X y", "ask"),
    ("a file name that is an option", READING, "rg x *", "ask"),
    ("find runs", READING, "find . -exec rm -rf {} +", "ask"),
    ("find runs, quoted", READING, "find . '-exec' rm -rf {} ';'", "ask"),
    ("find runs for each directory", READING, "find . -execdir rm -rf {} \\;", "ask"),
    ("awk runs", READING, "awk 'BEGIN { system(\"rm -rf x\") }'", "ask"),
    ("awk writes", READING, "awk '{ print > \"x\" }' y", "ask"),
    ("sed runs", READING, "sed -n 's/x/rm -rf y/e' f", "ask"),
    ("sed writes", READING, "sed -n 'w x' f", "ask"),
    ("timeout runs", READING, "timeout 5 rm -rf x", "ask"),
    ("xargs runs", READING, "echo x | xargs rm -rf", "ask"),
    ("xargs runs a shell", READING, "echo x | xargs -I{} sh -c 'rm -rf {}'", "ask"),
    ("git diff runs", READING, "git show --ext-diff --exec=./evil", "ask"),
    ("a transport that runs", READING, "git log ext::sh", "ask"),
    ("an abbreviated pager of git grep", GIT, "git grep --op='touch PWNED;' x", "ask"),
    ("a pager of git grep", GIT, "git grep --open-files-in-pager='touch PWNED;' x", "ask"),
    ("a pager of git grep in a bundle", GIT, "git grep -nO'touch PWNED;' x", "ask"),
    ("an abbreviated server program", GIT, "git fetch --upl='touch PWNED;' .", "ask"),
    ("a server program", GIT, "git fetch --upload-pack 'touch PWNED;' .", "ask"),
    ("a server program as a value's value", GIT, "git fetch --depth --upload-pack='touch PWNED;' .", "ask"),
    ("a server program of git push", GIT, "git push --rec='touch PWNED;' .", "ask"),
    ("a server program of git pull", GIT, "git pull --upl='touch PWNED;' .", "ask"),
    ("a server program of git ls-remote", GIT, "git ls-remote --up='touch PWNED;' .", "ask"),
    ("a merge strategy is a program", GIT, "git pull -s evil", "ask"),
    ("a diff program of the configuration", GIT, "git log --ext-d -p", "ask"),
    ("a text conversion of the configuration", GIT, "git grep --textc x", "ask"),
    ("a rebase that runs", GIT, "git rebase --exe='touch PWNED' HEAD~1", "ask"),
    ("a rebase that runs, in a bundle", GIT, "git rebase -qx 'touch PWNED' HEAD~1", "ask"),
    ("a template with hooks", GIT, "git init --templ=/tmp/evil .", "ask"),
    ("a setting of a clone", GIT, "git clone -c core.fsmonitor=./evil . x", "ask"),
    ("a setting that runs", GIT, "git config core.pager 'touch PWNED'", "ask"),
    ("an alias that is stored", GIT, "git config --global alias.st '!touch PWNED'", "ask"),
    ("a program of git's that is not known", GIT, "git evil", "ask"),
    ("an alias that may be stored", GIT, "git st", "ask"),
    ("a remote that is a program", GIT, "git fetch ext::./evil", "ask"),
    ("a remote of another helper", GIT, "git fetch evil::x", "ask"),
    ("a remote that is a program, after --", GIT, "git fetch -- ext::./evil", "ask"),
    ("a remote that is a path", GIT, "git push ./evil HEAD:refs/heads/x", "ask"),
    ("a remote that may be a directory", GIT, "git fetch evil", "ask"),
    ("a remote that is a path, after options and --", GIT, "git pull --depth 1 -- ../evil main", "ask"),
    ("a remote that is a file's address", GIT, "git push file:///tmp/evil main", "ask"),
    ("a remote that only bash knows", GIT, "git push ./$X main", "ask"),
    ("a remote that is the workspace", GIT, "git ls-remote .", "ask"),
    ("a clone of a path", GIT, "git clone --recurse-submodules evil/x y", "ask"),
    ("a remote that will be a path", GIT, "git remote add x evil", "ask"),
    ("a remote that becomes a path", GIT, "git remote set-url --push origin evil", "ask"),
    ("a submodule that is a path", GIT, "git submodule add -b main ./evil", "ask"),
    (
        "a remote that is a path, under a star",
        GIT.replace("git push *", "git push * main"),
        "git push ./evil main",
        "ask",
    ),
    ("another repository", GIT_DIRECTORY, "git --git-dir=evil status", "ask"),
    ("another repository, by its directory", GIT_DIRECTORY, "git -C evil --bare status", "ask"),
    ("an archive by another program", GIT, "git archive --remote=. --exec='touch PWNED' HEAD", "ask"),
    ("a file that git log writes", GIT, "git log --output=.git/hooks/pre-commit", "ask"),
    ("a file that git diff writes", GIT, "git diff --output x", "ask"),
    ("a file that git show writes, abbreviated", GIT, "git show --outp=x", "ask"),
    ("a file that git archive writes", GIT, "git archive -o x HEAD", "ask"),
    # --- what programs read
    ("a here-string that runs", DATABASE, "sqlite3 app.db <<< '.shell touch PWNED'", "ask"),
    ("a here-document that runs", DATABASE, "sqlite3 app.db <<'E'\n.shell touch PWNED\nE", "ask"),
    ("an input file that runs", DATABASE, "sqlite3 app.db < evil.sql", "ask"),
    ("an input file in front", DATABASE, "< evil.sql sqlite3 app.db", "ask"),
    ("an input descriptor", DATABASE, "sqlite3 app.db 3< evil.sql <&3", "ask"),
    ("an input descriptor by >&", DATABASE, "sqlite3 app.db 0>&3", "ask"),
    ("a pipe that runs", DATABASE, "echo .shell touch PWNED | sqlite3 app.db", "ask"),
    ("a pipe of both outputs", DATABASE, "echo .shell touch PWNED |& sqlite3 app.db", "ask"),
    ("a pipe at the end of three", DATABASE, "echo x | cat | sqlite3 app.db", "ask"),
    ("a pipe into a group", DATABASE, "echo .shell touch PWNED | { sqlite3 app.db; }", "ask"),
    ("a pipe into a subshell", DATABASE, "echo .shell touch PWNED | (echo x; sqlite3 app.db)", "ask"),
    ("a pipe into a loop", DATABASE, "echo .shell touch PWNED | while true; do sqlite3 app.db; done", "ask"),
    ("a pipe into a substitution", DATABASE, "echo .shell touch PWNED | echo $(sqlite3 app.db)", "ask"),
    ("a file into a loop", DATABASE, "for i in a; do sqlite3 app.db; done < evil.sql", "ask"),
    ("a file into a group", DATABASE, "{ sqlite3 app.db; } < evil.sql", "ask"),
    ("a here-document into a group", DATABASE, "{ sqlite3 app.db; } <<'E'\n.shell touch PWNED\nE", "ask"),
    ("a piped here-document", DATABASE, "cat <<'E' | sqlite3 app.db\n.shell touch PWNED\nE", "ask"),
    ("an input through a wrapper", DATABASE, "timeout 5 sqlite3 app.db <<< '.shell touch PWNED'", "ask"),
    ("an input by exec", DATABASE, "exec < evil.sql; sqlite3 app.db", "ask"),
    ("an input kept by xargs", DATABASE, "echo app.db | xargs -a names sqlite3 app.db", "ask"),
    ("a process substitution as input", DATABASE, "sqlite3 app.db < <(echo .shell touch PWNED)", "ask"),
    ("an assignment of env that has no name", NO_DESTRUCTION, "env 1=2 rm -rf x", "deny"),
    ("an assignment of env that begins with =", NO_DESTRUCTION, "env =x rm -rf x", "deny"),
    ("an assignment of env with a dash", NO_DESTRUCTION, "env a-b=c rm -rf x", "deny"),
    # --- places that other programs obey
    ("a git hook that is copied", PLACES, "cp evil .git/hooks/pre-commit", "ask"),
    ("a git hook that is moved there", PLACES, "mv evil ./.git/hooks/", "ask"),
    ("a git hook in quotes", PLACES, "cp evil .g''it/hooks/pre-commit", "ask"),
    ("an environment by braces", PLACES, "touch .env{rc,}", "ask"),
    ("a git hook by a default", PLACES, "cp evil ${A-.git}/hooks/pre-commit", "ask"),
    ("a git hook by a quoted default", PLACES, 'cp evil "${A-.git}/hooks/pre-commit"', "ask"),
    ("a git hook by pieces", PLACES, "cp evil ${A-.g}it/config", "ask"),
    ("a git hook by a loop", PLACES, 'for d in .git; do cp evil "$d/config"; done', "ask"),
    ("a git hook by the loop's own workspace", PLACES, 'for PWD in .git; do cp evil "$PWD/config"; done', "ask"),
    ("a git hook by a substitution", PLACES, "cp evil $(printf .g)it/config", "ask"),
    ("a profile by arithmetic", PLACES, "cp evil .b$((1))ashrc", "ask"),
    ("a profile by a tilde", PLACES, "cp evil ~root/x", "ask"),
    ("code, where any program is allowed", ANYTHING, "node --test-only -e 'x'", "ask"),
    *(
        (f"code of {program}, where any program is allowed", ANYTHING, f"{program} x", "ask")
        for program in (
            "julia -e",
            "Rscript -e",
            "R -e",
            "elixir -e",
            "octave --eval",
            "ipython3 -c",
            "sbcl --eval",
            "nu -c",
        )
    ),
    ("a script of another shell, where any program is allowed", ANYTHING, "yash x", "ask"),
    ("a script, where any program is allowed", ANYTHING, "bash x.sh", "ask"),
    ("scp that starts its server", ANYTHING, "scp -D /tmp/x a b", "ask"),
    ("sftp that starts its server", ANYTHING, "sftp -D /tmp/x", "ask"),
    ("sftp that runs a file of commands", ANYTHING, "sftp -b x host", "ask"),
    ("a git hook by a variable", PLACES, "cp evil $PWD/.git/hooks/pre-commit", "ask"),
    ("a git hook by a wildcard", PLACES, "cp evil .gi*/hooks/pre-commit", "ask"),
    ("a git hook in quotes beside a variable", PLACES, "cp evil .g''it/hooks/$X", "ask"),
    ("a git hook by a flag", PLACES, "cp --target-directory=.git/hooks evil", "ask"),
    ("a git hook by an option's attached value", PLACES, "cp -t.git/hooks pre-commit", "ask"),
    ("a git hook in a bundle of options", PLACES, "mv -ft.git/hooks pre-commit", "ask"),
    ("an environment by an attached output", ANYTHING, "sort -o.envrc x", "ask"),
    ("a git hook by a directory of tar", ANYTHING, "tar -xf x.tar -C.git/hooks", "ask"),
    ("a git hook by an option that is not known", ANYTHING, "whatever --now -zX.git/hooks", "ask"),
    ("an environment after another sign", ANYTHING, "whatever out@.envrc", "ask"),
    ("a directory of make", ANYTHING, "make -C.git", "ask"),
    ("a directory of env", ANYTHING, "env -C .git cp ../evil config", "ask"),
    ("a directory of env, attached", ANYTHING, "env -C.git cp ../evil config", "ask"),
    ("a directory of sudo", ANYTHING, "sudo --chdir=.git cp ../evil config", "ask"),
    ("a wrapper's own file", ANYTHING, "flock .git/hooks/pre-commit true", "ask"),
    ("sed that edits, in a bundle", ANYTHING, "sed -sEi s/a/b/ .github/workflows/ci.yml", "ask"),
    ("a reader that can write", ANYTHING, "xxd -r -p x.hex .envrc", "ask"),
    ("a pager's log", ANYTHING, "less -o.envrc x", "ask"),
    ("a file's name from xargs", ANYTHING, "echo .envrc | xargs touch", "ask"),
    ("a file's name from xargs, replaced", ANYTHING, "echo .envrc | xargs -I% cp evil %", "ask"),
    ("a file's name from a list", ANYTHING, "xargs -a names cp evil", "ask"),
    ("a file's name from find", ANYTHING, "find . -name 'x*' -exec cp evil {} +", "ask"),
    ("a directory that looks like an exclusion", PLACES, "cp evil '!/../.envrc'", "ask"),
    ("a directory that looks like an option", PLACES, "cp -- evil --exclude=x/../.git/config", "ask"),
    ("a suffix for copies", PLACES, "cp -b -S rc x .env", "ask"),
    ("a suffix for copies, attached", ANYTHING, "sed -irc p .env", "ask"),
    ("a suffix of pieces", ANYTHING, "split -b 9 --additional-suffix=c x .env", "ask"),
    ("a pattern of find", ANYTHING, "find . -name '.env?c' -delete", "ask"),
    ("a pattern of find, for a directory", ANYTHING, "find . -path './.g*t/*' -delete", "ask"),
    ("find that deletes, under a rule for find", PLACES, "find src -delete", "ask"),
    ("find that writes, under a rule for find", PLACES, "find src -fprint x", "ask"),
    ("a pathspec", PLACES, "git checkout HEAD -- '.e*'", "ask"),
    ("a pathspec without its dot", PLACES, "git checkout HEAD -- '?envrc'", "ask"),
    ("a pathspec that escapes", PLACES, "git checkout HEAD -- '.env\\rc'", "ask"),
    ("a pathspec with magic", PLACES, "git checkout HEAD -- ':(icase,glob).GITHU?/**'", "ask"),
    ("a pathspec by attributes", PLACES, "git checkout HEAD -- ':(attr:x)'", "ask"),
    ("a set of characters", PLACES, "git checkout HEAD -- '.env[[:alpha:]]c'", "ask"),
    ("braces of a program's own", ANYTHING, "whatever -O 'https://example.org/.env{r}c'", "ask"),
    ("a range in braces", PLACES, "touch .env{r..r}c", "ask"),
    ("many braces", PLACES, "touch {{.en,1,2,3,4,5,6,7,8,9,10,11,12,13},x}vrc", "ask"),
    ("a redirection by a variable", NO_DESTRUCTION, "F=.envrc; echo evil > $F", "ask"),
    ("a redirection by a wildcard", NO_DESTRUCTION, "echo evil > .env?c", "ask"),
    ("a place of a program that only bash knows", EVERYTHING, "X=touch; $X .envrc", "ask"),
    ("an agent's settings", PLACES, "cp evil .claude/settings.json", "ask"),
    ("a build server's file without a dot", PLACES, "cp evil Jenkinsfile", "ask"),
    ("a workflow that is edited", PLACES, "sed -i s/a/b/ .github/workflows/ci.yml", "ask"),
    ("a workflow that is written", PLACES, "echo x | tee .github/workflows/ci.yml", "ask"),
    ("a workflow in another directory", PLACES, "cd .github && touch workflows/x.yml", "ask"),
    ("a workflow within a wrapper", PLACES, "timeout 5 cp evil .github/workflows/x.yml", "ask"),
    ("a workflow that is taken from elsewhere", PLACES, "git checkout evil -- .github", "ask"),
    ("an environment that is deleted", PLACES, "find . -name .envrc -delete", "ask"),
    ("a git hook, where everything goes", NO_DESTRUCTION, "echo evil > .git/hooks/pre-commit", "ask"),
    ("a git hook in a function's text", NO_DESTRUCTION, "sh -c 'cp evil .git/hooks/pre-commit'", "ask"),
    ("an environment, where everything goes", NO_DESTRUCTION, "printf x >> .envrc", "ask"),
    # --- wrappers
    ("env", NO_DESTRUCTION, "env rm -rf x", "deny"),
    ("env with a variable", NO_DESTRUCTION, "env -i A=1 rm -rf x", "deny"),
    ("env that splits", NO_DESTRUCTION, "env -S 'rm -rf x'", "ask"),
    ("sudo", NO_DESTRUCTION, "sudo rm -rf x", "deny"),
    ("sudo with options", NO_DESTRUCTION, "sudo -n -u root -- rm -rf x", "deny"),
    ("doas", NO_DESTRUCTION, "doas -u root rm -rf x", "deny"),
    ("sh -c", NO_DESTRUCTION, "sh -c 'rm -rf x'", "deny"),
    ("bash -lc", NO_DESTRUCTION, 'bash -lc "cd /tmp && rm -rf x"', "deny"),
    ("bash -ec with long options", NO_DESTRUCTION, "bash --norc -e -c 'rm -rf x' name", "deny"),
    ("bash -o pipefail -c", NO_DESTRUCTION, "bash -o pipefail -c 'rm -rf x'", "deny"),
    ("a shell by its path", NO_DESTRUCTION, "/usr/bin/zsh -c 'rm -rf x'", "deny"),
    ("sh -c in sh -c", NO_DESTRUCTION, "sh -c \"sh -c 'rm -rf x'\"", "deny"),
    ("xargs", NO_DESTRUCTION, "ls | xargs -0 -n 1 rm -rf", "deny"),
    ("xargs with its own flags last", NO_DESTRUCTION, "ls | xargs -P4 rm -r", "deny"),
    ("xargs that fills in the flag", NO_DESTRUCTION, "echo -rf | xargs rm", "ask"),
    ("xargs that fills in the program", NO_DESTRUCTION, "echo rm | xargs -I{} {} -rf x", "ask"),
    ("find", NO_DESTRUCTION, "find . -name '*.py' -exec rm -rf {} \\;", "deny"),
    ("nohup", NO_DESTRUCTION, "nohup rm -rf x", "deny"),
    ("timeout", NO_DESTRUCTION, "timeout -k 1 5 rm -rf x", "deny"),
    ("nice and ionice", NO_DESTRUCTION, "nice -n 5 ionice -c 3 rm -rf x", "deny"),
    ("time", NO_DESTRUCTION, "time rm -rf x", "deny"),
    ("time with an assignment", NO_DESTRUCTION, "time A=1 rm -rf x", "deny"),
    ("stdbuf", NO_DESTRUCTION, "stdbuf -oL rm -rf x", "deny"),
    ("setsid", NO_DESTRUCTION, "setsid -w rm -rf x", "deny"),
    ("command", NO_DESTRUCTION, "command -p rm -rf x", "deny"),
    ("builtin and command", NO_DESTRUCTION, "builtin command rm -rf x", "deny"),
    ("exec", NO_DESTRUCTION, "exec -a ls rm -rf x", "deny"),
    ("eval", NO_DESTRUCTION, "eval 'rm -rf' x", "deny"),
    ("eval of a variable", NO_DESTRUCTION, 'eval "$X"', "ask"),
    ("trap", NO_DESTRUCTION, "trap 'rm -rf x' EXIT", "deny"),
    ("watch", NO_DESTRUCTION, "watch -n 1 rm -rf x", "deny"),
    ("flock", NO_DESTRUCTION, "flock /tmp/l rm -rf x", "deny"),
    ("flock -c", NO_DESTRUCTION, "flock /tmp/l -c 'rm -rf x'", "deny"),
    ("chroot", NO_DESTRUCTION, "chroot /mnt rm -rf x", "deny"),
    ("busybox", NO_DESTRUCTION, "busybox rm -rf x", "deny"),
    ("parallel", NO_DESTRUCTION, "parallel rm -rf ::: x", "ask"),
    ("ssh", NO_DESTRUCTION, "ssh host rm -rf x", "ask"),
    ("ssh, quoted", NO_DESTRUCTION, "ssh -p 22 host 'cd /; rm -rf x'", "ask"),
    ("ssh, from its input", NO_DESTRUCTION, "echo rm -rf x | ssh -p 22 host", "ask"),
    ("an editor", NO_DESTRUCTION, "vim -c '!rm -rf x' y", "ask"),
    ("the loader", NO_DESTRUCTION, "/lib64/ld-linux-x86-64.so.2 /bin/rm -rf x", "ask"),
    ("docker", NO_DESTRUCTION, "docker exec -it box sh -c 'rm -rf x'", "ask"),
    ("su -c", NO_DESTRUCTION, "su root -c 'rm -rf x'", "ask"),
    ("npx", NO_DESTRUCTION, "npx -y rm -rf x", "ask"),
    ("another program's own words", NO_DESTRUCTION, "setpriv --reuid=0 rm -rf x", "ask"),
    ("a program that is not known", NO_DESTRUCTION, "whatever --now rm -rf x", "ask"),
    ("a program that is not known, in a text", NO_DESTRUCTION, "whatever --run 'rm -rf x'", "ask"),
    ("a program that is not known, quoted twice", NO_DESTRUCTION, "whatever --run 'r\"\"m -rf x'", "ask"),
    ("a program that is not known, attached", NO_DESTRUCTION, "whatever --run=rm x", "ask"),
    ("a program that is not known, bundled", NO_DESTRUCTION, "whatever -xcurl x", "ask"),
    ("a compiler that starts another program", NO_DESTRUCTION, "g++ -wrapper rm,-rf,x a.c", "ask"),
    (
        "a package manager that starts another program",
        NO_DESTRUCTION,
        "apt-get -o 'Dpkg::Pre-Invoke::=rm -rf x' update",
        "ask",
    ),
    ("jobs -x", NO_DESTRUCTION, "jobs -x rm -rf x", "deny"),
    ("tar's old bundle", NO_DESTRUCTION, "tar cIf 'sh -c \"rm -rf x\"' x.tar y", "ask"),
    ("tar's old bundle, obfuscated", NO_DESTRUCTION, "tar cIf 'sh -c \"r$(echo m) -rf x\"' x.tar y", "ask"),
    ("node's test flag before code", NO_DESTRUCTION, "node --test-only -e 'x'", "ask"),
    ("node's flag before code", NO_DESTRUCTION, "node --no-warnings --eval 'x'", "ask"),
    ("the shell by its process", NO_DESTRUCTION, "/proc/self/exe -c 'x'", "ask"),
    ("the shell by a process", NO_DESTRUCTION, "//proc/1/../self/exe -c 'x'", "ask"),
    ("gdb's commands", NO_DESTRUCTION, "gdb -ex 'shell rm -rf x' -batch", "ask"),
    ("gdb's commands, obfuscated", NO_DESTRUCTION, "gdb -ex 'python x()' -batch", "ask"),
    ("cmake's tools", NO_DESTRUCTION, "cmake -E env rm -rf x", "ask"),
    ("bun's code", NO_DESTRUCTION, "bun -e 'x'", "ask"),
    ("bun's shell", NO_DESTRUCTION, "bun exec 'rm -rf x'", "deny"),
    ("bun's packages", NO_DESTRUCTION, "bun x rm -rf x", "ask"),
    ("bun's input", NO_DESTRUCTION, "echo x | bun run -", "ask"),
    ("deno's code", NO_DESTRUCTION, "deno eval 'x'", "ask"),
    ("deno's input", NO_DESTRUCTION, "echo x | deno run -A -", "ask"),
    ("pwsh's code", NO_DESTRUCTION, "pwsh -NoProfile -c 'x'", "ask"),
    ("pwsh's encoded code", NO_DESTRUCTION, "pwsh -enc eAA=", "ask"),
    ("pwsh's code after another dash", NO_DESTRUCTION, "pwsh \u2013c 'x'", "ask"),
    ("powershell's code", NO_DESTRUCTION, "powershell.exe /c x", "ask"),
    ("bun's code after run", NO_DESTRUCTION, "bun --bun run -e 'x'", "ask"),
    ("deno's code as an address", NO_DESTRUCTION, "deno run -A data:text/javascript,x", "ask"),
    ("deno's code in a task", NO_DESTRUCTION, "deno task --eval 'rm -rf x'", "ask"),
    ("make's shell", NO_DESTRUCTION, "make SHELL='rm -rf x'", "ask"),
    ("make's input", NO_DESTRUCTION, "make -f- <<< 'a:;rm -rf x'", "ask"),
    ("m4's input", NO_DESTRUCTION, "m4 <<< 'syscmd(rm -rf x)'", "ask"),
    ("a database's input", NO_DESTRUCTION, "echo .shell rm -rf x | sqlite3 app.db", "ask"),
    ("a copy under another name", NO_DESTRUCTION, "cp /bin/rm x; ./x -rf y", "ask"),
    ("a symlink to what is looked up", NO_DESTRUCTION, 'ln -s "$(command -v rm)" ls; ./ls -rf y', "ask"),
    ("a copy by a glob", NO_DESTRUCTION, "cp /bin/r? x; ./x -rf y", "ask"),
    ("a carrier with half a variable", NO_DESTRUCTION, "setpriv r${u}m -rf y", "ask"),
    ("a carrier with a glob", NO_DESTRUCTION, "strace -f /b*/rm -rf y", "ask"),
    ("a manager with a glob", NO_DESTRUCTION, "uv run /b*/rm -rf y", "ask"),
    ("a file read by a substitution", SHOWING, 'echo "$(<secret)"', "ask"),
    ("a file read by a substitution in a default", SHOWING, "echo ${x:-$(< ./secret )}", "ask"),
    ("a symlink with another name", NO_DESTRUCTION, "ln -s /bin/rm ls; ./ls -rf y", "ask"),
    ("a module of Python that takes code", NO_DESTRUCTION, "python3 -m timeit 'x()'", "ask"),
    ("code after what looks like a module", NO_DESTRUCTION, "python3 -W -m -c 'x()'", "ask"),
    ("a module of Python that reads code", NO_DESTRUCTION, "echo 'x()' | python3 -m code", "ask"),
    ("a program in a text", NO_DESTRUCTION, "sqlite3 app.db '.shell $(echo cm0K | base64 -d) -rf x'", "ask"),
    ("a carrier with a variable", NO_DESTRUCTION, "setpriv --reuid=0 $X -rf y", "ask"),
    ("a carrier with a quoted variable", NO_DESTRUCTION, 'strace -f "$1" -rf y', "ask"),
    ("a carrier with a substitution", NO_DESTRUCTION, "rlwrap $(echo rm) -rf y", "ask"),
    ("the shell by its process, from here", NO_DESTRUCTION, "../../../../../../proc/self/exe -c x", "ask"),
    ("the shell by its process, entered", NO_DESTRUCTION, "cd /proc/self && ./exe -c 'x'", "ask"),
    ("a descriptor as a program", NO_DESTRUCTION, "/dev/fd/3 3<<< 'rm -rf x'", "ask"),
    ("a compiler's plugin", NO_DESTRUCTION, "c++ -fplugin=./a.so a.c", "ask"),
    ("a compiler's directory of programs", NO_DESTRUCTION, "gcc -B./bin a.c", "ask"),
    ("a shell that is none by name", NO_DESTRUCTION, "capsh -- -c 'x'", "ask"),
    ("an unknown option of a wrapper", NO_DESTRUCTION, "sudo --brand-new x rm -rf y", "ask"),
    ("eleven wrappers", NO_DESTRUCTION, "env " * 11 + "rm -rf x", "ask"),
    # --- the same command otherwise written
    ("the other order", NO_DESTRUCTION, "rm x -fr", "deny"),
    ("flags apart", NO_DESTRUCTION, "rm -f -r x", "deny"),
    ("a long flag", NO_DESTRUCTION, "rm --recursive --force x", "deny"),
    ("an abbreviated flag", NO_DESTRUCTION, "rm --recurs x", "ask"),
    ("flags after the operand", NO_DESTRUCTION, "git push origin main -f", "deny"),
    ("a value in front of the subcommand", NO_DESTRUCTION, "git -C x push --force", "deny"),
    ("an unknown value in front of the subcommand", NO_DESTRUCTION, "git --attr x push --force", "ask"),
    ("a setting in front of the subcommand", NO_DESTRUCTION, "git -c user.name=x push --force", "deny"),
    ("another operand first", NO_DESTRUCTION, "dd if=/dev/zero of=/dev/sda", "deny"),
    ("a path with dots", NO_DESTRUCTION, "dd of=/dev/../dev/sda", "deny"),
    ("another file first", NO_DESTRUCTION, "chmod -R 777 /", "deny"),
    ("the flag in a variable", NO_DESTRUCTION, "rm $FLAGS x", "ask"),
    ("the flag in quotes from a variable", NO_DESTRUCTION, 'rm "$1" x', "ask"),
    ("the flag from a glob", NO_DESTRUCTION, "rm *", "ask"),
    ("a doubtful end of flags", NO_DESTRUCTION, "git push -o -- --force", "ask"),
    ("an absolute path", NO_DESTRUCTION, "/bin/rm -rf x", "deny"),
    ("a relative path", NO_DESTRUCTION, "../../bin/rm -rf x", "deny"),
    ("capitals", NO_DESTRUCTION, "RM -rf x", "deny"),
    # --- quoting and encodings
    ("double quotes", NO_DESTRUCTION, '"rm" "-rf" x', "deny"),
    ("quotes inside the word", NO_DESTRUCTION, "r''m -r\"\"f x", "deny"),
    ("a backslash", NO_DESTRUCTION, "\\rm -\\rf x", "deny"),
    ("a continued line inside the word", NO_DESTRUCTION, "r\\\nm -rf x", "ask"),
    ("a continued line between words", NO_DESTRUCTION, "rm \\\n  -rf x", "deny"),
    ("hexadecimal", NO_DESTRUCTION, "$'\\x72\\x6d' -rf x", "deny"),
    ("octal", NO_DESTRUCTION, "$'\\162m' -rf x", "deny"),
    ("a Unicode escape", NO_DESTRUCTION, "$'\\u0072m' -rf x", "deny"),
    ("a NUL escape", NO_DESTRUCTION, "$'rm\\0x' -rf x", "ask"),
    ("a translated string", NO_DESTRUCTION, '$"rm" -rf x', "ask"),
    ("braces", NO_DESTRUCTION, "{rm,-rf,x}", "ask"),
    ("braces for the flag", NO_DESTRUCTION, "rm {-r,-f} x", "ask"),
    ("a glob for the program", NO_DESTRUCTION, "/bin/r? -rf x", "ask"),
    ("a variable for the program", NO_DESTRUCTION, "X=rm; $X -rf x", "ask"),
    ("half a variable", NO_DESTRUCTION, "r${y}m -rf x", "ask"),
    ("a default for the program", NO_DESTRUCTION, "${y:-rm} -rf x", "ask"),
    ("base64", NO_DESTRUCTION, "echo cm0gLXJmIHg= | base64 -d | sh", "ask"),
    ("a script from a pipe", NO_DESTRUCTION, "cat x | bash -s", "ask"),
    ("a script from a here-document", NO_DESTRUCTION, "bash <<'E'\nrm -rf x\nE", "ask"),
    ("a script from a piped here-document", NO_DESTRUCTION, "cat <<'E' | sh\nrm -rf x\nE", "ask"),
    ("a script from a here-string", NO_DESTRUCTION, "sh <<< 'rm -rf x'", "ask"),
    ("a script from a process", NO_DESTRUCTION, "bash <(echo rm -rf x)", "ask"),
    ("an alias", NO_DESTRUCTION, "shopt -s expand_aliases\nalias ls='rm -rf x'\nls", "ask"),
    ("a sourced script", NO_DESTRUCTION, "source x.sh", "ask"),
    ("a hashed program", NO_DESTRUCTION, "hash -p /bin/rm ls; ls -rf x", "ask"),
    ("a path in front", NO_DESTRUCTION, "PATH=. ls", "ask"),
    ("a path for what follows", NO_DESTRUCTION, "PATH=.; ls", "ask"),
    ("a path from a loop", NO_DESTRUCTION, "for PATH in .; do ls; done", "ask"),
    ("a path that is read", NO_DESTRUCTION, "read PATH < x; ls", "ask"),
    ("an exported library", NO_DESTRUCTION, "export LD_PRELOAD=./x.so && ls", "ask"),
    ("a prompt command", NO_DESTRUCTION, "env BASH_ENV=x bash -c ls", "ask"),
    ("a variable set by printf", NO_DESTRUCTION, "printf -v PATH .; ls", "ask"),
    ("a script file", NO_DESTRUCTION, "bash x.sh", "ask"),
    ("python from a pipe", NO_DESTRUCTION, "echo x | python3 -", "ask"),
    ("python inline", NO_DESTRUCTION, "python3 -c 'import os; os.system(\"rm -rf x\")'", "ask"),
    ("perl inline", NO_DESTRUCTION, "perl -e 'system \"rm -rf x\"'", "ask"),
    ("node inline", NO_DESTRUCTION, "node --eval 'x'", "ask"),
    # --- what is read wrongly by some
    ("an argument joined with a redirection", NO_DESTRUCTION, "rm x -rf2>/dev/null", "ask"),
    ("an argument joined with a here-document", NO_DESTRUCTION, "rm x -rf<<E\nE", "ask"),
    ("arguments after a redirection", NO_DESTRUCTION, "rm >/dev/null -rf x", "deny"),
    ("a here-document that ends early", NO_DESTRUCTION, "cat <<E\nE\nrm -rf x\nE", "deny"),
    ("a here-document that ends late", READING, "cat <<'E'\nE \nE\nrm -rf x", "ask"),
    ("a comment that is none", NO_DESTRUCTION, "echo a#b; rm -rf x", "deny"),
    ("a comment that hides a quote", NO_DESTRUCTION, "echo # '\nrm -rf x #'", "deny"),
    ("a quote that hides a comment", NO_DESTRUCTION, "echo ' # '; rm -rf x", "deny"),
    ("a test that seems longer", NO_DESTRUCTION, "[[ -n - ]] && rm- ]] && rm -rf x", "ask"),
    ("backquotes that seem nested", NO_DESTRUCTION, "A=`echo A=`rm -rf x` -rf` y", "ask"),
    ("a coprocess", NO_DESTRUCTION, "coproc rm -rf x", "ask"),
    ("a keyword as program", NO_DESTRUCTION, "time { rm -rf x; }", "ask"),
    ("text that does not parse", NO_DESTRUCTION, "rm -rf 'x", "ask"),
    ("nothing at all", READING, "", "ask"),
    ("only a comment", READING, "# git status", "ask"),
    ("an assignment alone", READING, "X=1", "ask"),
    ("too long", NO_DESTRUCTION, "echo " + "x" * 70_000, "ask"),
    ("too deep", NO_DESTRUCTION, "(" * 80 + "ls" + ")" * 80, "ask"),
    # --- characters
    ("a full-width name", NO_DESTRUCTION, "\uff52\uff4d -rf x", "ask"),
    ("a Cyrillic letter", READING, "git\u0430 status", "ask"),
    ("a Cyrillic letter in an allowed name", READING, "n\u0440m test", "ask"),
    ("a no-break space", READING, "git\u00a0status", "ask"),
    ("an invisible character in the name", READING, "git\u200b status", "ask"),
    ("a NUL", NO_DESTRUCTION, "ls \0 rm -rf x", "ask"),
    ("a carriage return", NO_DESTRUCTION, "ls\r\nrm -rf x", "ask"),
    ("an escape sequence", NO_DESTRUCTION, "ls \x1b[2K", "ask"),
    ("a line separator", NO_DESTRUCTION, "ls \u2028rm -rf x", "ask"),
    ("half a surrogate pair", NO_DESTRUCTION, "ls \ud800", "ask"),
    ("a backslash at the end", NO_DESTRUCTION, "ls \\", "ask"),
]

ORDINARY = [
    "git status",
    "git status --short",
    "git diff",
    "git diff --stat HEAD~1 -- src",
    "git log --oneline -n 20",
    'git show "HEAD:$(git diff --name-only)"',
    "git add src/*.py",
    "git commit -m 'Fix; the && parser'",
    'git commit -m "$(cat <<\'EOF\'\nA title\n\nA body with `code`, $(no command) and "quotes".\nEOF\n)"',
    "ls",
    "ls -la src",
    "ls *.py",
    "rg foo | head",
    "rg -n 'foo(bar)?' src tests | head -n 20",
    "rg foo src/*.py 2>/dev/null | wc -l",
    "npm test",
    "npm test 2>&1",
    "npm run lint",
    "pytest -q && git diff src/*.py",
    "python -m pytest -x tests/unit",
    "python -m pytest --ignore=.git --cov=src -c x.ini",
    "cd src && ls -la",
    "cat README.md | head -n 5",
    "cat < README.md",
    "cat <<'EOF'\nrm -rf x\nEOF",
    "cat <<EOF\nhello $USER\nEOF",
    "find . -name '*.py' -type f",
    "find . -name '*.py' | sort | head",
    "find . -name '*.py' -exec cat {} +",
    "rg -l foo | xargs cat",
    "timeout 60 pytest -q",
    "awk '{ print $1 }' file",
    "sed -n '1,20p' file",
    "if [ -f x ]; then cat x; fi",
    "for f in a b; do cat $f; done",
    "test -d src && ls src",
    "echo 'rm -rf /' # only words",
    'echo "$HOME" $((1 + 2)) ${USER:-nemo}',
    "(cd src && ls)",
    "{ ls; git status; }",
    "! test -e x",
    "git status\ngit diff",
    "git log \\\n  --oneline",
    "make check >/dev/null 2>&1",
]
"""Under READING, these run unseen."""

ALLOWED_BY = [
    (GIT, "git grep -n --heading -C3 -e foo -- src"),
    (GIT, "git fetch --prune --depth=1 origin main"),
    (GIT, "git push -u origin HEAD --force-with-lease=main"),
    (GIT, "git log --oneline --graph -5 --since yesterday --format='%h %s' -- src"),
    (GIT, "git log -S foo --author=ann -p --stat=80"),
    (GIT, "git diff -U5 --word-diff=color --cached --name-only HEAD~1..HEAD"),
    (GIT, "git branch -vv --sort=-committerdate"),
    (GIT, "git config --get user.name"),
    (GIT, "git config user.email ann@example.org"),
    (GIT, "git show HEAD:src/a.py"),
    (GIT, "git clone --depth 1 https://example.org/x.git x"),
    (GIT, "git push git@example.org:a/b.git main"),
    (GIT, "git pull --rebase origin feature/x"),
    (GIT, "git remote add fork https://example.org/x.git"),
    (GIT, "git submodule update --init vendor/x"),
    (GIT, "git fetch"),
    (GIT.replace("git push *", "git push fork *"), "git push fork HEAD"),
    (GIT.replace("git clone *", "git clone ../x.git *"), "git clone ../x.git y"),
    (PLACES.replace("find *", "find src -delete *"), "find src -name '*.pyc' -delete"),
    (READING, 'echo "$(<README.md)"'),
    (PLACES, "cat .github/workflows/ci.yml .envrc"),
    (PLACES, "find . -path ./.git -prune -o -name x"),
    (PLACES, "git add .github/workflows/ci.yml"),
    (PLACES, "cp .gitignore src/.gitignore"),
    (PLACES, "ls .github/workflows"),
    (NO_DESTRUCTION, "git commit -m 'Look at .github' && cp x.git y"),
    (NO_DESTRUCTION, "sed -n 1,20p .github/workflows/ci.yml"),
    (NO_DESTRUCTION, "tar --exclude=.git -cf x.tar src"),
    (PLACES.replace("cp *", "cp ci.yml .github/workflows/*"), "cp ci.yml .github/workflows/ci.yml"),
    (DATABASE, "sqlite3 app.db 'select 1' < /dev/null"),
    (DATABASE, "sqlite3 app.db 'select 1' 2>&1 | cat"),
    (DATABASE, "echo app.db | xargs cat"),
    (DATABASE + "stdin = true", "sqlite3 app.db <<< 'select 1'"),
    (DATABASE + "stdin = true", "echo 'select 1' | sqlite3 app.db"),
]
"""A rule, and a command that it lets run unseen."""

HARMLESS = [
    "git push origin main",
    "git commit -m 'git push --force is bad'",
    "git add push",
    "rm -f x y",
    "chmod 755 x",
    "echo rm -rf x",
    "grep -r rm src",
    "npm install && npm test",
    "FOO=1 NODE_ENV=test npm test",
    "python3 script.py",
    "make -j4 test > log 2>&1",
    "docker compose up -d",
    "bun run build && bun src/index.ts",
    "deno run -A main.ts",
    "pwsh -NoProfile -File build.ps1",
    "node --test tests/",
    "jobs -l",
    "tar cf x.tar y",
    "cmake --build build",
    "gcc -DBUILD=1 -O2 a.c -o a",
    "make CC=clang",
    "node --max-old-space-size=4096 a.js",
    "bun --cwd app run build",
    "deno -A main.ts",
    'docker run --rm -v "$PWD":/app node npm test',
    "cp a b && mv b c && ln -s c d",
    "cp src/*.py docs/",
    "npx prettier --check src/*.ts",
    'set -euo pipefail; cat "$HOME/x"',
]
"""Under NO_DESTRUCTION, these run unseen."""

EVERYDAY = [
    "python -m pytest -q",
    "pip install -e '.[dev]'",
    "pip install git+https://example.org/x.git",
    "git clone https://example.org/x.git x",
    "git remote add origin git@example.org:a/b.git",
    "git submodule add https://example.org/a/b.git vendor/b",
    "git checkout -b feature/x",
    "git checkout main -- src/a.py",
    "git stash && git pull --rebase && git stash pop",
    "git diff -- ':(exclude)*.lock'",
    "git rm --cached 'build/*.o'",
    "git mv a.py b.py",
    "git status && git diff --stat",
    "cp .env.example .env",
    "cp -r src/templates dist/",
    "mkdir -p build/{a,b}",
    "rm -f src/*.pyc",
    "touch src/__init__.py .gitignore .gitkeep .gitattributes .editorconfig .dockerignore .prettierrc",
    "sed -i 's/a/b/' src/a.py",
    "sed -i.bak s/a/b/ setup.cfg",
    "sed -n '1,20p' .github/workflows/ci.yml",
    "cat .github/workflows/ci.yml .npmrc",
    "grep -rn --exclude-dir=.git foo .",
    "rg -g '!.git' --hidden foo",
    "ls -la .github .claude",
    "find . -path ./.git -prune -o -name '*.py' -print",
    "find . -name '*.pyc' -delete",
    "find .github -name '*.yml' -exec cat {} +",
    "find src -name '*.py' | xargs grep -n foo",
    "rsync -a --exclude=.git --exclude=node_modules src/ dst/",
    "tar --exclude=.git -czf x.tgz src",
    "tar -xzf x.tgz -C build",
    "unzip -o x.zip -d build",
    "psql -c 'select * from t where a = 1'",
    "sqlite3 app.db 'select count(*) from t'",
    "docker compose --env-file .env config",
    "docker build -t x:1 -f Dockerfile .",
    "npm run build -- --mode production",
    "npx prettier --write 'src/**/*.{ts,tsx,css}'",
    "npx eslint 'src/**/*.ts' --fix",
    "cargo test -- --nocapture",
    "go build -o bin/app ./cmd/app",
    "make -C docs html",
    "make -j4 CFLAGS=-O2",
    "gcc -Isrc -o a.out a.c",
    "black . --exclude '\\.venv'",
    "uv run pytest",
    "timeout 60 make test",
    "env CI=1 npm test",
    "time pytest -q",
    "echo hello > out.txt",
    "printf '%s\\n' a b | tee out.txt",
    "jq '.scripts | keys[]' package.json",
    "jq -r '.[] | \"\\(.a).\\(.b)\"' x.json",
    "awk -F, '{ print $1 }' data.csv",
    "sort -u a.txt -o b.txt",
    "split -l 100 data.csv part-",
    "patch -p1 < fix.diff",
    "chmod +x scripts/run.sh",
    "ln -s ../shared lib/shared",
    "ssh-keygen -lf key.pub",
    "kubectl get pods -n app",
    "helm upgrade x ./chart -f values.yaml",
    "xxd a.bin | head",
]
"""Commands of everyday work: where everything goes but a few, none is asked about because of places that others obey."""

PAYING = """
[[rule]]
name = "no-large-payments"
verdict = "deny"
tools = ["pay"]
args = [{ at = "/amount", op = "gt", value = 500 }]

[[rule]]
name = "production-asks"
verdict = "ask"
tools = ["pay"]
args = [{ at = "/account", op = "eq", value = "production" }]

[[rule]]
name = "forced"
verdict = "deny"
tools = ["pay"]
args = [{ at = "/force", op = "eq", value = true }]

[[rule]]
name = "the-rest"
verdict = "allow"
tools = ["pay"]
"""

SMALL_PAYMENTS = """
[[rule]]
name = "small"
verdict = "allow"
tools = ["pay"]
args = [
  { at = "/amount", op = "le", value = 50.5 },
  { at = "/currency", op = "in", value = ["EUR", "USD"] },
  { at = "/to/name", op = "starts_with", value = "acme-" },
  { at = "/note", op = "absent" },
]
"""

ARGUMENTS = [
    ("too much", PAYING, '{"amount": 501}', "deny"),
    ("a number as text", PAYING, '{"amount": "501"}', "deny"),
    ("a number as text of another reader", PAYING, '{"amount": "0501"}', "ask"),
    ("a small number as text", PAYING, '{"amount": "1e3"}', "ask"),
    ("an exponent", PAYING, '{"amount": 1e3}', "deny"),
    ("a large exponent", PAYING, '{"amount": 1e999}', "deny"),
    ("a hair more", PAYING, '{"amount": 500.00000000000000000001}', "deny"),
    ("above what a double holds", PAYING, '{"amount": 9007199254740993}', "deny"),
    ("a list for a number", PAYING, '{"amount": [1]}', "ask"),
    ("an object for a number", PAYING, '{"amount": {"value": 1}}', "ask"),
    ("true for a number", PAYING, '{"amount": true}', "ask"),
    ("null for a number", PAYING, '{"amount": null}', "ask"),
    ("no number", PAYING, "{}", "ask"),
    ("a key given twice, small last", PAYING, '{"amount": 501, "amount": 1}', "ask"),
    ("a key given twice, small first", PAYING, '{"amount": 1, "amount": 501}', "ask"),
    ("an escaped key", PAYING, '{"\\u0061mount": 501}', "deny"),
    ("an escaped key given twice", PAYING, '{"amount": 1, "\\u0061mount": 501}', "ask"),
    ("NaN", PAYING, '{"amount": NaN}', "ask"),
    ("not JSON", PAYING, '{"amount": 1', "ask"),
    ("too deep", PAYING, '{"amount": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "ask"),
    ("digits without end", PAYING, '{"amount": ' + "9" * 5000 + "}", "ask"),
    ("the account itself", PAYING, '{"amount": 1, "account": "production"}', "ask"),
    ("the account in capitals", PAYING, '{"amount": 1, "account": "Production "}', "ask"),
    ("the account full-width", PAYING, '{"amount": 1, "account": "\\uff50roduction"}', "ask"),
    ("the account with an invisible character", PAYING, '{"amount": 1, "account": "prod\\u200buction"}', "ask"),
    ("a list for the account", PAYING, '{"amount": 1, "account": ["production"]}', "ask"),
    ("force", PAYING, '{"amount": 1, "force": true}', "deny"),
    ("force as text", PAYING, '{"amount": 1, "force": "true"}', "ask"),
    ("force as a number", PAYING, '{"amount": 1, "force": 1}', "ask"),
    (
        "a bit more than allowed",
        SMALL_PAYMENTS,
        '{"amount": 50.51, "currency": "EUR", "to": {"name": "acme-x"}}',
        "ask",
    ),
    (
        "true for an allowed number",
        SMALL_PAYMENTS,
        '{"amount": true, "currency": "EUR", "to": {"name": "acme-x"}}',
        "ask",
    ),
    (
        "text for an allowed number",
        SMALL_PAYMENTS,
        '{"amount": "5e0", "currency": "EUR", "to": {"name": "acme-x"}}',
        "ask",
    ),
    ("no currency", SMALL_PAYMENTS, '{"amount": 5, "to": {"name": "acme-x"}}', "ask"),
    ("another currency", SMALL_PAYMENTS, '{"amount": 5, "currency": "eur", "to": {"name": "acme-x"}}', "ask"),
    (
        "the currency given twice",
        SMALL_PAYMENTS,
        '{"amount": 5, "currency": "XXX", "currency": "EUR", "to": {"name": "acme-x"}}',
        "ask",
    ),
    ("a look-alike name", SMALL_PAYMENTS, '{"amount": 5, "currency": "EUR", "to": {"name": "\\u0430cme-x"}}', "ask"),
    ("a name one level off", SMALL_PAYMENTS, '{"amount": 5, "currency": "EUR", "to/name": "acme-x"}', "ask"),
    (
        "something beside",
        SMALL_PAYMENTS,
        '{"amount": 5, "currency": "EUR", "to": {"name": "acme-x"}, "note": "x"}',
        "ask",
    ),
    (
        "an empty something beside",
        SMALL_PAYMENTS,
        '{"amount": 5, "currency": "EUR", "to": {"name": "acme-x"}, "note": null}',
        "ask",
    ),
]

ALLOWED_ARGUMENTS = [
    (SMALL_PAYMENTS, '{"amount": "5.00", "currency": "EUR", "to": {"name": "acme-x"}}'),
    (PAYING, '{"amount": 500}'),
    (PAYING, '{"amount": 5e2, "account": "test", "force": false}'),
    (SMALL_PAYMENTS, '{"amount": 50.5, "currency": "EUR", "to": {"name": "acme-x"}}'),
]

SECRETS = """
[[rule]]
name = "secrets"
verdict = "deny"
tools = ["write_file"]
paths = ["**/.env", "/etc/**", "config/secret/**"]

[[rule]]
name = "the-rest"
verdict = "allow"
tools = ["write_file"]
"""

SOURCES = """
[[rule]]
name = "sources"
verdict = "allow"
tools = ["write_file"]
paths = ["src/**", "docs/*.md"]
"""

PROJECT = """
[[rule]]
name = "project"
verdict = "allow"
tools = ["write_file"]
paths = [".github/**", "**/.vscode/**"]
"""

PATHS = [
    ("a git hook", SECRETS, ".git/hooks/pre-commit", "ask"),
    ("git's configuration", SECRETS, "@/.git/config", "ask"),
    ("a workflow", SECRETS, "src/../.github/workflows/ci.yml", "ask"),
    ("a workflow, in capitals", SECRETS, ".GitHub/workflows/ci.yml", "ask"),
    ("an editor's tasks", SECRETS, ".vscode/tasks.json", "ask"),
    ("an environment", SECRETS, "src/.envrc", "ask"),
    ("a git hook by a symlink", SECRETS, "src/link-to-git/hooks/pre-commit", "ask"),
    ("a git hook beside named places", SECRETS + PROJECT, ".github/../.git/config", "ask"),
    # `@` stands for the workspace. In it: src/, docs/, config/secret/, and the symlinks that test_bypasses makes.
    ("the file itself", SECRETS, ".env", "deny"),
    ("with a dot", SECRETS, "./.env", "deny"),
    ("with dots", SECRETS, "src/../.env", "deny"),
    ("doubled slashes", SECRETS, "src//..//.env", "deny"),
    ("a trailing slash", SECRETS, ".env/", "deny"),
    ("absolute", SECRETS, "@/.env", "deny"),
    ("absolute, two slashes", SECRETS, "//etc/passwd", "deny"),
    ("out of the workspace", SECRETS, "@/../../../../../../../../../etc/passwd", "deny"),
    ("the directory itself", SECRETS, "/etc", "deny"),
    ("by a symlink to the file", SECRETS, "src/link-to-env", "deny"),
    ("by a symlink to the directory", SECRETS, "src/link-to-secret/key", "deny"),
    ("by a symlink that dangles", SECRETS, "src/dangling", "deny"),
    ("by a chain of symlinks", SECRETS, "src/link-to-link", "deny"),
    ("dots after a symlink", SECRETS, "src/link-to-secret/../hidden/key", "deny"),
    ("where the denied directory leads", SECRETS, "hidden/key", "deny"),
    ("where the denied directory leads, absolute", SECRETS, "@/hidden/key", "deny"),
    ("a NUL", SECRETS, "x\0.env", "ask"),
    ("half a surrogate pair", SECRETS, "x\ud800", "ask"),
    ("out of the sources by dots", SOURCES, "src/../x", "ask"),
    ("out of the sources, absolute", SOURCES, "/etc/passwd", "ask"),
    ("out of the sources by a symlink", SOURCES, "src/link-to-secret/key", "ask"),
    ("out of the sources by a file symlink", SOURCES, "src/link-to-env", "ask"),
    ("a symlink into the sources", SOURCES, "link-to-src/x", "ask"),
    ("below what one star covers", SOURCES, "docs/x/y.md", "ask"),
    ("another case", SOURCES, "SRC/x", "ask"),
    ("a look-alike", SOURCES, "sr\u0441/x", "ask"),
    ("the home directory", SOURCES, "~/src/x", "ask"),
    ("a longer name", SOURCES, "src2/x", "ask"),
    ("text around", SOURCES, " src/x", "ask"),
    ("a loop of symlinks", SOURCES, "src/loop/x/../../../x", "ask"),
]

ALLOWED_PATHS = [
    (SECRETS, "src/x"),
    (SECRETS, ".env.example"),
    (SECRETS, "~/notes"),
    (SECRETS + PROJECT, ".github/workflows/ci.yml"),
    (SECRETS + PROJECT, "src/.vscode/tasks.json"),
    (SECRETS, ".gitignore"),
    (SECRETS, "docs/.github.md"),
    (SOURCES, "src/new/file.py"),
    (SOURCES, "@/src/x"),
    (SOURCES, "./docs/../docs/x.md"),
    (SOURCES, "src/link-inside/x"),
]
