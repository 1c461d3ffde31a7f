package forge

import "context"

// Pass is [Loop.pass].
func (l *Loop) Pass(ctx context.Context) error { return l.pass(ctx) }
