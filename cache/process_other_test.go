//go:build !linux

package cache

var platformRoles map[string]func(args []string) error
