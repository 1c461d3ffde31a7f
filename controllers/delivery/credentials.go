package delivery

import (
	"context"
	"fmt"

	"github.com/keelson-io/keelson/controllers/connect"
)

// connectionCallbacks returns the callbacks for changes of the credentials.
func (c *connection) connectionCallbacks() connect.Callbacks {
	return connect.Callbacks{
		Renewed: func() {
			c.log.Info("the connection has new credentials")
			c.tryNow()
		},
		Trouble: c.troubled,
		Moved: func(server string) {
			c.log.Info("the connection leads to another server by now", "server", server)
			c.moved(c.name)
		},
	}
}

// troubled notes why new credentials can't be used. Work goes on with the previous credentials.
func (c *connection) troubled(err error) {
	c.mu.Lock()
	c.note = ""
	if err != nil {
		c.note = fmt.Sprintf("the connection goes on with the credentials from before: %v", err)
	}
	text := c.note
	c.mu.Unlock()
	if err != nil {
		c.log.Warn("the connection's new credentials can't be used; those from before stay in use", "error", err)
	} else {
		c.log.Info("the connection's credentials can be used again")
	}
	c.reportCredentials(c.name, text)
	c.user.queueAfter("", 0) // every status shows the note
}

// credentialsChanged makes the connection read its settings again.
func (c *connection) credentialsChanged() {
	c.mu.Lock()
	link := c.link
	c.mu.Unlock()
	if link != nil {
		link.line.Again()
		return
	}
	select {
	case c.dialSoon <- struct{}{}:
	default:
	}
}

// tryNow queues all components, since reconciles with the previous credentials may have failed.
func (c *connection) tryNow() {
	if c.lost() {
		c.requestPing()
	}
	c.user.credentialsRenewed()
}

// followCredentials runs [Options.Follow] for the connection in git.
func (c *connection) followCredentials(ctx context.Context) {
	if c.follow != nil {
		c.follow(ctx, c.credentialsChanged)
	}
}
