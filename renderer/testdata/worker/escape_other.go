//go:build !linux

package main

import "errors"

func escapes() map[string]error { return nil }

func apart() bool { return false }

type escaping struct{}

func (escaping) Write([]byte) (int, error) { return 0, errors.New("this is for Linux") }

func parent(bool) error { return errors.New("this is for Linux") }
