// Command pwc is the command line of the compiler (package cli).
package main

import "pwc/cli"

func main() { cli.Main() }
