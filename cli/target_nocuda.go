//go:build nocuda

package cli

// gpus returns none: the program was built without them.
func gpus() []platform { return nil }
